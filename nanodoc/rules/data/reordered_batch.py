"""## What it checks
Some samples are drawn one by one and given to the loader's own collate function. One part of the
batch that comes out holds them in another order, and another part in theirs: sequences that were
sorted by their length, and labels that were not.

Silent where a part is no sample as it was drawn, but for padding behind it.

## Why it matters
Most labels belong to other samples. The loss comes down to that of guessing, and no error is
raised.

## Example
    labels = torch.tensor([label for _, label in samples])
    sequences = sorted((sequence for sequence, _ in samples), key=len, reverse=True)

## Fix
    samples = sorted(samples, key=lambda sample: len(sample[0]), reverse=True)

## See also
ND125 misaligned-targets, ND141 misplaced-positives
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import item_claim


@rule(
    "ND146",
    "reordered-batch",
    "critical",
    "a collate function that puts one part of the batch into another order",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    seen = evidence.items.reordered if evidence.items is not None else None
    if seen is None:
        return
    yield item_claim(
        rule,
        evidence,
        0,
        seen.moved,
        seen.line,
        title="the collate function puts one part of the samples into another order",
        explanation=f"Of {seen.of} samples, batch{seen.moved} holds them in another order than "
        f"they were given in, and batch{seen.kept} in that: {seen.rows} of its rows belong to "
        "other samples.",
        weight=confidence(0.8, min(1.0, seen.rows / 6)),
        notes=[("samples put together", seen.of), ("rows that belong to others", seen.rows)],
        fix="sort the samples as a whole, before they are taken apart",
    )
