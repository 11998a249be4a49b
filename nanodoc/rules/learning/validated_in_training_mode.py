"""## What it checks
A script that reads a data set it does not train on between its training steps, and meanwhile the
running statistics of batch norm layers change, or the whole model is in training mode and random
numbers are drawn, as by dropout. A model in eval mode with only its dropout in training mode is not
reported: that is done on purpose.

## Why it matters
The validation measures a noisier model. Batch norm also learns the validation's statistics, and
normalises a batch of one with itself.

## Example
    @torch.no_grad()
    def validate(model, loader):
        for x, y in loader:
            correct += (model(x).argmax(1) == y).sum()

## Fix
    model.eval()                     # and model.train() before the next epoch

## See also
ND613 eval-mode; torch.nn.Module.eval
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count, location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_SHOWN = 3  # layers by name


@rule(
    "ND642",
    "validated-in-training-mode",
    "warning",
    "a validation in training mode",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = evidence.asides.validation if evidence.asides is not None else None
    if found is None:
        return
    layers = found.batch_norms or found.dropouts
    norms = bool(found.batch_norms)
    shown = ", ".join(name or "the model" for name in layers[:_SHOWN])
    yield learning_claim(
        rule,
        location_key(found.drawn_at) or ("validation", "mode"),
        title="the validation runs the model in training mode"
        + (", and its batch norm learns from it" if norms else ""),
        explanation=(
            f"The running statistics of {count(len(layers), 'layer')} ({shown}) changed while "
            "batches of the validation were read."
            if norms
            else f"{shown} dropped values at random while batches of the validation were read."
        ),
        culprit=Culprit(kind="module", module=layers[0] or None, location=found.drawn_at),
        phase="script",
        # a statistic moves only in training mode; random numbers may be drawn by others, too
        weight=0.95 if norms else 0.8,
        notes=[("layers", shown)],
        fix="call model.eval() before the validation, and model.train() after it",
        standing=WIRED,
    )
