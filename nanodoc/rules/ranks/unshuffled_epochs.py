"""## What it checks
A shuffling DistributedSampler whose epoch is still 0 at the end of the run although there was more
than one pass over the loader.

## Why it matters
The sampler shuffles by its seed and its epoch. The epoch is never set, so every pass has the same
order as the first, and the same samples are always in the same batch on the same rank.

## Example
    sampler = DistributedSampler(dataset)
    for epoch in range(epochs):
        for batch in DataLoader(dataset, batch_size=32, sampler=sampler):

## Fix
    for epoch in range(epochs):
        sampler.set_epoch(epoch)

## See also
ND806 same-batches
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence


@rule(
    "ND807",
    "unshuffled-epochs",
    "warning",
    "a DistributedSampler without set_epoch()",
    needs=("data",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    order = evidence.data.one_order if evidence.data is not None else None
    if order is None:
        return
    yield Claim(
        root=("order",),
        specificity=Specificity.EXACT,
        stage=Stage.DATA,
        finding=rule.finding(
            confidence=confidence(0.8, 0.4 if order.passes > 2 else 0.2),
            title=f"all {order.passes} passes over the data have the same order",
            explanation="The DistributedSampler shuffles by its seed and its epoch, and its epoch "
            f"is still 0 in pass {order.passes}: set_epoch() was not called.",
            culprit=Culprit(kind="data", location=order.line or evidence.data_site),
            phase="data",
            step=order.batches,
            evidence=(("batches of a pass", order.batches), ("passes started", order.passes)),
            fixes=(
                Fix(title="call sampler.set_epoch(epoch) before each pass", confidence="likely"),
            ),
        ),
    )
