"""## What it checks
At the end of the run, a sample of a data set whose loader has workers is drawn again by processes
that act as two workers, or as a single worker in two epochs: each has a copy of the data set and a
separate seed, and runs `worker_init_fn`. Reported if a part of the sample changes from draw to
draw, but both workers get exactly the same draws. An info for a single worker.

## Why it matters
Every worker augments its first sample exactly like the other workers do, and the same random
numbers return in every epoch: there is far less variety than it seems. A generator that a data set
keeps is copied into each worker, and the loader does not reseed it.

## Example
    self.rng = np.random.default_rng(0)      # in __init__, drawn from in __getitem__

## Fix
    def __getitem__(self, index):
        noise = torch.randn(3)               # torch's generator has a different seed in each worker

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
        f"The generator `{item.holder}` is copied into each worker unchanged."
        if item.holder
        else "They get the same seed."
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
        explanation=f"{whose} Sample {item.index} changes from draw to draw, but each draw is the "
        f"same in {'two workers' if several else 'two epochs'}.",
        # so many draws that are equal to the last bit are no chance; the line says where it comes
        # from
        weight=confidence(0.8, 0.6 if item.line is not None else 0.0),
        notes=[("generator", item.holder), ("part", item.part), ("workers", item.workers)],
        fix="draw from torch's generator, which has a different seed in each worker and epoch; "
        "or make the generator in worker_init_fn from torch.initial_seed()",
    )
