"""## What it checks
At the end of the run, some samples of the data set are drawn again, in a separate process and
always with the same random numbers. Reported if drawing writes into an array that the data set
keeps (at least half as many values as the sample has), the next draw of the same sample differs by
more than a hundredth of its size, and with the array's old content restored the sample is the same
as before.

## Why it matters
A sample is scaled, shifted or rotated again in every epoch. The first epoch looks right.

## Example
    def __getitem__(self, index):
        image = self.images[index]
        image /= 255            # writes into self.images

## Fix
    image = self.images[index] / 255

## See also
ND107 unnormalised-input
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import item_claim


@rule(
    "ND119",
    "changing-items",
    "critical",
    "a sample changes each time it is drawn: its data set overwrites it",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    item = evidence.items.changing if evidence.items is not None else None
    if item is None:
        return
    ranges = [f"{low:.4g} … {high:.4g}" for low, high in item.ranges]
    holder = item.holder.removeprefix(".")
    seen = (
        "Each draw removes something that is missing in all later draws. Training has left "
        "nothing to remove in these samples, so this was checked with random numbers in their "
        "place."
        if item.filled
        else f"Sample {item.index} has values of {', then '.join(ranges)} in successive draws "
        "with the same random numbers. With the old content restored, it has its first "
        "values again."
    )
    yield item_claim(
        rule,
        evidence,
        item.index,
        item.part,
        item.line,
        title=f"drawing a sample writes into `{holder}`: its next draw is different",
        explanation=seen,
        # the line was seen, and each of the draws speaks for itself
        weight=confidence(0.8, 0.6 if item.line is not None else 0.2),
        notes=[
            ("written", holder),
            *((f"draw {number}", told) for number, told in enumerate(ranges, 1)),
        ],
        fix="work on a copy: no in-place operations on arrays that the data set keeps",
    )
