"""## What it checks
Batch norm and dropout layers that were in training mode when the last step's forward ran, though
eval() was called before on the layer itself, or on a frozen part that it belongs to: a train() of
the whole model took that back. An info where it is dropout only; an eval() that a library calls
when it loads a model does not count.

## Why it matters
The frozen statistics move with every batch, and dropout is back in the frozen part.

## Example
    for layer in norms: layer.eval()
    ...
    model.train()       # goes through every module below

## Fix
    model.train()
    for layer in norms: layer.eval()

## See also
ND613 wrong-mode, ND517 ineffective-freeze
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import learning_claim


@rule(
    "ND632",
    "undone-eval",
    "warning",
    "frozen layers that train() has put back into training mode",
    needs=("inspection",),
    preflight="modes",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    modes = evidence.inspection.modes if evidence.inspection is not None else ()
    back = [mode for mode in modes if mode.training and mode.eval_at is not None]
    if not back or back[0].eval_at is None:
        return
    first = back[0]
    place = f"{back[0].eval_at.file}:{back[0].eval_at.line}"
    more = f" and {len(back) - 1} more" if len(back) > 1 else ""
    norms = any(mode.momentum is not None for mode in back)
    yield learning_claim(
        rule,
        location_key(first.train_at) or ("mode", first.module),
        severity=rule.severity if norms else "info",
        title=f"train() has put {first.module}{more} back into training mode",
        explanation=f"eval() was called on {'it' if len(back) == 1 else 'them'} at "
        f"{place}, and train() goes through every module below: "
        + (
            "the running statistics that were to stay move with every batch."
            if norms
            else "dropout drops values in a part that was to stay as it is."
        ),
        culprit=Culprit(
            kind="module",
            module=first.module,
            module_type=first.module_type,
            location=first.train_at,
        ),
        # both calls were seen; several layers are no slip of one line
        weight=confidence(0.8, 0.3 if len(back) > 1 else 0.1, 0.3 if norms else 0.0),
        step=0,
        notes=[("eval() at", place), ("layers", len(back))],
        fix="call eval() on these layers after every model.train(), or override train()",
    )
