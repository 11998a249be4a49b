"""## What it checks
A part of the batch that the model is shown in part, and that its output is compared with. The last
step is run again, and the elements of that part are followed: which of them reach the model, and
which the loss. Reported if at least 5 % are hidden from the model and the loss asks for none of
them (at most 1 % of what it asks for), while it leaves out a part of the model's output. What is
hidden must differ from sample to sample and hold values: missing values and a fixed region are not
reported.

## Why it matters
The model learns to copy what it sees. The loss falls fast, and what the model should learn, to fill
in the rest, is never asked.

## Example
    prediction = model(x * mask)                                   # mask: 1 where x is shown
    loss = ((prediction - x) ** 2 * mask).sum() / mask.sum()

## Fix
    loss = ((prediction - x) ** 2 * (1 - mask)).sum() / (1 - mask).sum()

## See also
ND117 leaked-target
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
    "ND170",
    "given-answer",
    "warning",
    "a loss that asks only for what the model was shown",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    seen = evidence.inspection.asked_for if evidence.inspection is not None else None
    if seen is None:
        return
    yield learning_claim(
        rule,
        location_key(seen.location) or ("given",),
        title="the loss asks only for what the model was given, and for nothing of what is hidden",
        explanation=f"{100 * seen.hidden:.0f} % of the input's elements are hidden from the model. "
        f"The loss compares its output with {100 * seen.asked:.0f} % of the elements, and all of "
        "these are visible in its input: the mask is used the other way round.",
        culprit=Culprit(kind="op", location=seen.location),
        step=len(evidence.losses) - 1,
        # the more is hidden, and the more is asked for, the less can it be chance
        weight=confidence(0.7, min(seen.hidden, seen.asked)),
        notes=[
            ("hidden from the model", f"{seen.hidden:.3f} of the elements"),
            ("asked for by the loss", f"{seen.asked:.3f} of the elements"),
        ],
        fix="compare what is hidden: invert the mask here",
    )
