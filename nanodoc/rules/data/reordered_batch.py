"""## What it checks
Some samples are drawn one by one and passed to the loader's collate function. One part of the
resulting batch has them in a different order, a second part in the original one: sequences that
were sorted by length, and labels that were not.

Not checked for parts whose rows are not the drawn samples themselves, apart from trailing padding.

## Why it matters
Most labels belong to other samples. The loss only falls to that of guessing, and no error is
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
    "a collate function that reorders only one part of the batch",
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
        title="the collate function reorders only one part of the samples",
        explanation=f"Of {seen.of} samples, collate reordered batch{seen.moved} but not "
        f"batch{seen.kept}: {seen.rows} of its rows belong to other samples.",
        weight=confidence(0.8, min(1.0, seen.rows / 6)),
        notes=[("samples collated", seen.of), ("rows that belong to others", seen.rows)],
        fix="sort the samples as a whole, before you split them into fields",
    )
