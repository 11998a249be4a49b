"""## What it checks
The labels of up to four batches, spread over the run, as they reach a classification loss: each
batch holds a single class, while the batches together hold several, so chance does not explain it.
One batch may hold more, where a class ends within it.

## Why it matters
The data is sorted by class and read in order: the model learns the current class and forgets the
earlier ones, and batch statistics are those of one class.

## Example
    DataLoader(dataset, batch_size=64)      # one folder per class, one after the other

## Fix
    DataLoader(dataset, batch_size=64, shuffle=True)

## See also
ND108 constant-batch, ND109 class-imbalance
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import LabelFacts
from nanodoc.rules.data.batch_claims import batch_claim

_FEWEST = 3
"""Batches: two may differ for any reason."""


@rule(
    "ND115",
    "single-class-batches",
    "warning",
    "each batch holds one class while the data holds several",
    needs=("inspection",),
    thresholds={
        "chance": Threshold(1e-4, "probability that shuffled data would look like this"),
    },
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    labels = evidence.inspection.labels if evidence.inspection is not None else ()
    alone = [batch for batch in labels if batch.only is not None]
    classes = sorted({batch.only for batch in alone if batch.only is not None})
    if len(alone) < _FEWEST or len(labels) - len(alone) > 1 or len(classes) < 2:
        return
    chance = _chance(alone)
    if chance > check.limit(evidence, "chance"):
        return
    named = ", ".join(f"{batch.only} in step {batch.step}" for batch in alone)
    yield batch_claim(
        rule,
        evidence,
        None,
        title="every batch holds samples of only one class",
        explanation=f"{len(alone)} of the {len(labels)} examined batches hold one class each: "
        f"{named}. With shuffle they would mix; now the model learns one class after the "
        "other.",
        weight=confidence(0.7, 0.6 if chance < 1e-9 else 0.3, 0.4 if len(classes) > 2 else 0.1),
        notes=[
            ("class of each batch", named),
            ("samples in a batch", min(batch.samples for batch in alone)),
            ("probability in shuffled data", f"{chance:.1g}"),
        ],
        fix="shuffle=True for the DataLoader (or a sampler that mixes the classes)",
    )


def _chance(batches: Sequence[LabelFacts]) -> float:
    """The probability that batches drawn from shuffled data hold one class each: the product over
    the batches of Σ qᵢⁿ, with qᵢ the share of class i among all samples looked at and n the
    samples of the batch (draws are taken for independent)."""
    counts: Counter[int | None] = Counter()
    for batch in batches:
        counts[batch.only] += batch.samples
    total = counts.total()
    return math.prod(
        sum((count / total) ** batch.samples for count in counts.values()) for batch in batches
    )
