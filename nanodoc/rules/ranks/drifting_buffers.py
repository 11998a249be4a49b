"""## What it checks
Under torchrun, at the end: the running means of BatchNorm layers that nothing synchronises between
the ranks (`broadcast_buffers=False`, or gradients that are averaged by hand), relative to the
layers' running standard deviations.

## Why it matters
Each rank has normalised with the statistics of its share of the data, and the shares differ. The
rank that evaluates or saves the model uses its own statistics.

## Example
    model = DistributedDataParallel(net, broadcast_buffers=False)

## Fix
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)

Or give every rank a random share of the data, or average the buffers before you evaluate or save
the model.

## See also
ND802 diverged-replicas
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.finding import Culprit, Fix
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.ranks import RankOutcome, RunningChannels

_FAR = 1.0
"""Standard deviations. Random shares of one data set come to less: at the usual momentum of 0.1 and
batches of B samples two running means differ by √(2/(19·B)), a third for B of 1."""


@rule(
    "ND813",
    "drifting-buffers",
    "info",
    "the ranks' BatchNorm statistics have drifted apart",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    ranks = evidence.ranks
    if len(ranks) < 2 or not all(rank.running for rank in ranks):
        return
    if len({rank.fingerprints for rank in ranks}) > 1 or not ranks[0].fingerprints:
        return  # other weights, or models that are not meant to be one
    first = ranks[0]
    apart = [
        (_apart(one, other), one.layer, rank.rank)
        for rank in ranks[1:]
        for one, other in zip(first.running, rank.running, strict=False)
        if one.layer == other.layer
    ]
    far, layer, rank = max(apart, default=(0.0, "", 0))
    if not far >= _FAR:
        return
    yield Claim(
        root=("buffers",),
        specificity=Specificity.FAMILY,
        finding=rule.finding(
            confidence=confidence(0.6, 0.3 if far > 2 * _FAR else 0.1),
            title=f"{layer} has different running statistics on every rank",
            explanation=f"Its running means on rank {first.rank} and rank {rank} are {far:.2g} "
            "standard deviations apart (median over channels), although the parameters are "
            "the same. The rank that evaluates or saves the model uses the statistics of its "
            "share of the data.",
            culprit=Culprit(kind="module", module=layer),
            phase="forward",
            step=None,
            evidence=tuple(
                (f"rank {one.rank}, first channels", ", ".join(f"{m:.3g}" for m in _of(one, layer)))
                for one in (first, next(r for r in ranks if r.rank == rank))
            ),
            fixes=(
                Fix(
                    title="torch.nn.SyncBatchNorm.convert_sync_batchnorm(model), or a random "
                    "share of the data for every rank",
                    confidence="likely",
                ),
            ),
        ),
    )


def _apart(one: RunningChannels, other: RunningChannels) -> float:
    """The median over channels, in standard deviations."""
    found = [
        abs(a - b) / deviation
        for a, b, deviation in zip(one.means, other.means, one.deviations, strict=False)
        if deviation > 0 and math.isfinite(a - b)
    ]
    return statistics.median(found) if found else 0.0


def _of(rank: RankOutcome, layer: str) -> tuple[float, ...]:
    return next((one.means[:4] for one in rank.running if one.layer == layer), ())
