"""## What it checks
A loss of a million or more in the first step and in the last. The last step is run again with its
ops recorded, and from the loss back to the op whose result is over 10 000 times as large as its
largest input, its square and its sum; or to a tensor that was made before the loop and holds such
values. Where that was, what was made before the loop is made once more, line by line, up to the
line after which the values were there. If a loop multiplies them again and again with one array,
the line that made this array is told.

## Why it matters
The other terms of the loss are smaller than what float32 rounds away beside such values, and the
gradients follow the few largest elements alone.

## Example
    degrees = np.diag(a.sum(1))
    walk = degrees.dot(a)                # multiplied instead of divided
    powers = [walk, walk.dot(walk)]

## Fix
    walk = np.diag(1 / a.sum(1)).dot(a)

## See also
ND645 unscaled-target, ND107 unnormalised-input, ND606 divergence
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import LargeFacts
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import SHORTEST, Standing, learning_claim
from nanodoc.vocabulary.calls import REGRESSION


@rule(
    "ND671",
    "huge-values",
    "warning",
    "values of millions that make the loss what it is",
    needs=("inspection",),
    thresholds={
        "loss": Threshold(1e6, "|loss| of the first and of the last step; calibrated ones are less")
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection, losses = evidence.inspection, evidence.losses
    found = inspection.large if inspection is not None else None
    if found is None or inspection is None or len(losses) < SHORTEST:
        return
    if min(abs(losses[0]), abs(losses[-1])) < check.limit(evidence, "loss"):
        return
    if found.name and found.op.short in ("sub", "rsub", *REGRESSION):
        return  # targets: ND645 judges their size
    where = found.made_at or found.op.site
    yield learning_claim(
        rule,
        location_key(where) or ("huge", found.op.index),
        standing=Standing(stage=Stage.DATA, specificity=Specificity.SPECIAL),
        title=f"the loss is {losses[0]:.2g} in the first step: {_carrier(found)}",
        explanation=f"{_story(found)} After {len(losses)} steps the loss is {losses[-1]:.2g}. "
        "Next to such values, float32 rounds away the other terms of the loss, and the gradients "
        "follow the largest elements alone.",
        culprit=Culprit(
            kind="data" if found.name else "op",
            op=found.op.short,
            module=found.op.module,
            module_type=found.op.module_type,
            location=where,
        ),
        step=inspection.step,
        weight=confidence(0.6, 0.5 if found.made_at is not None or not found.name else 0.0),
        notes=[
            ("largest value", f"{found.largest:.3g}"),
            ("grows at", found.grown_at.place if found.grown_at is not None else None),
            ("enters the step at", found.op.site.place if found.op.site is not None else None),
        ],
        fix="check whether a multiplication stands for a division, and whether a divisor can be "
        "nearly zero; scale the values to about 1",
    )


def _carrier(found: LargeFacts) -> str:
    if not found.name:
        return f"{found.op.short} makes values up to {found.largest:.2g} of small ones"
    return f"a tensor from before the loop holds values up to {found.largest:.2g}"


def _story(found: LargeFacts) -> str:
    if not found.name:
        given = [facts.absmax for facts in found.op.inputs if facts.absmax is not None]
        return f"The largest of its inputs is {max(given, default=0.0):.2g}."
    named = f"`{found.variable}`" if found.variable else "what holds them"
    if found.grown_at is not None:
        return (
            f"Their magnitude grows in {found.grown_at.place}, which multiplies with {named} again "
            "and again; that array is made here."
        )
    if found.made_at is not None:
        return f"They are first so large in {named}, made here."
    return "They enter the step here."
