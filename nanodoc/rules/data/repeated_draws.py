"""## What it checks
Of a data set whose loader has workers, a sample is drawn again when the run is over, by processes
that play two workers, or a single one in two epochs: each with a copy of the data set, a seed of
its own and what `worker_init_fn` makes of it. A part of the sample changes from draw to draw, and
the draws of the one worker are exactly those of the other. Of a single worker, an info.

## Why it matters
Every worker augments its first sample like the other workers their first, and in every epoch the
same random numbers come again: there is far less variety than it seems. A generator that a data set
keeps is copied into each worker, and the loader gives it no seed of its own.

## Example
    self.rng = np.random.default_rng(0)      # in __init__, drawn from in __getitem__

## Fix
    def __getitem__(self, index):
        noise = torch.randn(3)               # torch's generator has another seed in each worker

## See also
ND119 changing-items
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import item_claim


@rule(
    "ND127",
    "repeated-draws",
    "warning",
    "all workers of a loader draw the same random numbers",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    item = evidence.items.repeated if evidence.items is not None else None
    if item is None:
        return
    whose = (
        f"The generator `{item.holder}` is copied into each worker as it is."
        if item.holder
        else "They are seeded alike."
    )
    several = item.workers > 1
    yield item_claim(
        rule,
        evidence,
        item.index,
        item.part,
        item.line,
        severity=rule.severity if several else "info",
        title=f"the loader's {item.workers} workers draw the same random numbers"
        if several
        else "the loader's worker draws the same random numbers in every epoch",
        explanation=f"{whose} Sample {item.index} changes from draw to draw, and one "
        f"draw after the other is the same in {'two workers' if several else 'two epochs'}.",
        # so many draws that are equal to the last bit are no chance; the line says where it comes
        # from
        weight=confidence(0.8, 0.6 if item.line is not None else 0.0),
        notes=[("generator", item.holder), ("part", item.part), ("workers", item.workers)],
        fix="draw from torch's generator, which has another seed in each worker and epoch; or make "
        "the generator in worker_init_fn from torch.initial_seed()",
    )
