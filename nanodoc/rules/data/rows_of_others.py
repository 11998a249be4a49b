"""## What it checks
Values that a step combines row by row, or that a loss compares, and that hold rows of different
samples. The last step is run again and the rows of each tensor are followed from where they are
taken (an index, a slice, `roll`, `flip`). Reported if the samples come in a random order, and

- one part of the data is taken in another order than at least three parts that it meets, and is
  never taken in theirs; or
- a loss that the step makes smaller compares a prediction with targets that were moved to other
  rows, and that hold another part of the data than the prediction.

Left alone are mixed samples whose targets are mixed too, and pairs of samples of one part. In other
cases the same early steps are tried without the call that moves the rows (ND672).

## Why it matters
Each sample is trained with what belongs to another one. Nothing fails, and little is learned.

## Example
    order = torch.randperm(len(states))
    for at in range(0, len(states), 64):
        rows = order[at : at + 64]
        loss = -(log_prob(states[rows], actions[rows]) * advantages[at : at + 64]).mean()

## Fix
    loss = -(log_prob(states[rows], actions[rows]) * advantages[rows]).mean()

## See also
ND146 reordered-batch, ND153 shuffled-apart, ND672 learns-without
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, learning_claim

_MANY = 32  # rows: the more, the less is it chance


@rule(
    "ND175",
    "rows-of-others",
    "critical",
    "values of different samples combined row by row",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.rows_apart if inspection is not None else None
    if inspection is None or seen is None or not seen.sure:
        return
    tried = evidence.pattern.without if evidence.pattern is not None else None
    at = seen.taken_at
    if tried is not None and at is not None and tried.location.line == at.line:
        return  # ND672 says what it costs
    place = f"were taken at {seen.usual_at.place}" if seen.usual_at else "are those of the batch"
    yield learning_claim(
        rule,
        location_key(seen.taken_at) or ("rows", seen.taken, seen.number),
        title=f"{seen.combined} combines {seen.rows} rows with those of other samples",
        explanation=f"The rows that {seen.taken} gives here are those of other samples than what "
        f"{seen.combined} combines them with, which {place}. In this step {seen.parts} parts of "
        "the data are in that order.",
        culprit=Culprit(kind="op", op=seen.taken, location=seen.taken_at),
        step=inspection.step,
        weight=confidence(0.8, 0.5 if seen.rows >= _MANY else 0.2),
        notes=[("combined at", seen.at.place if seen.at is not None else None)],
        fix="take the same rows of each part",
        standing=WIRED,
    )
