"""## What it checks
Under torchrun, with a model in DistributedDataParallel: whether the last steps' batches were
bitwise the same on every rank, while they differed from step to step.

## Why it matters
DDP averages the gradients of the ranks. If all ranks compute the same gradient, many devices do the
work of one; nothing fails, and the loss falls as on one device.

## Example
    loader = DataLoader(dataset, batch_size=32)   # on every rank

## Fix
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    sampler.set_epoch(epoch)   # in every epoch, or the order is always the same

## See also
ND108 constant-batch
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import count
from nanodoc.rules.ranks.outcomes import named

_STEPS_ALIKE = 3  # at least; two batches may be alike by chance of a small data set


@rule(
    "ND806",
    "same-batches",
    "warning",
    "every rank trains on the same batches",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    if len(ranks) < 2 or not all(rank.wrapped and rank.batches for rank in ranks):
        return
    steps = set.intersection(*({step for step, _ in rank.batches} for rank in ranks))
    drawn = [tuple(digest for step, digest in rank.batches if step in steps) for rank in ranks]
    # a batch that comes again and again is somebody's test
    if len(steps) < _STEPS_ALIKE or len(set(drawn)) > 1 or len(set(drawn[0])) < len(steps):
        return
    where = ranks[0].data_site
    yield Claim(
        root=("batches",),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            confidence=confidence(
                0.5, 0.4 if len(steps) > _STEPS_ALIKE else 0.2, 0.2 if where is not None else 0.0
            ),
            title="every rank draws the same batches",
            explanation=f"In all {count(len(steps), 'step')} that were compared, "
            f"{named([rank.rank for rank in ranks])} had the same batch, bit for bit. The "
            "ranks compute the same gradients, and the average equals each of them: training "
            "is no faster than on one device and sees no more data.",
            culprit=Culprit(kind="data", location=where),
            phase="data",
            step=min(steps),
            evidence=(("steps compared", ", ".join(map(str, sorted(steps)))),),
            fixes=(
                Fix(
                    title="DataLoader(..., sampler=DistributedSampler(dataset)) and "
                    "sampler.set_epoch(epoch); or a separate seed or shard for each rank",
                    confidence="likely",
                ),
            ),
        ),
    )
