"""## What it checks
Batch norm and dropout layers that were in training mode in the last step's forward although eval()
had been called on the layer, or on the frozen part it belongs to: a train() of the whole model
undid that. An info if only dropout is affected. An eval() that a library calls when it loads a
model does not count.

## Why it matters
The frozen statistics change with every batch, and dropout is active again in the frozen part.

## Example
    for layer in norms: layer.eval()
    ...
    model.train()       # applies to every submodule

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
    "frozen layers that train() puts back into training mode",
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
        explanation=f"eval() was called on {'it' if len(back) == 1 else 'them'} at {place}, but "
        "train() applies to every submodule: "
        + (
            "the running statistics that should stay fixed change with every batch."
            if norms
            else "dropout drops values in a part that should stay fixed."
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
