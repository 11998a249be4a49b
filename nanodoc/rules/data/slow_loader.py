"""## What it checks
The share of the run's time spent waiting for the next batch, if it is more than half and at least 5
ms per step.

## Why it matters
The device idles.

## Example
    DataLoader(images, num_workers=0)

## Fix
Use num_workers, pin_memory, persistent_workers, and less work per sample.

## See also
ND108 constant-batch
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.data.batch_claims import (
    batch_claim,
)

_WORTH = 0.005
"""Seconds a step: waiting less than this for data is the loop's own overhead."""


@rule(
    "ND112",
    "slow-loader",
    "info",
    "more time is spent waiting for data than computing",
    needs=("data",),
    thresholds={"share": Threshold(0.5, "share of the time spent waiting for data")},
    trials=("samples",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    data = evidence.data
    if (
        data is None
        or data.load_share is None
        or data.load_share <= check.limit(evidence, "share")
        or data.median_wait < _WORTH
        or len(evidence.losses) < 10
    ):
        return
    yield batch_claim(
        rule,
        evidence,
        None,
        title=f"{data.load_share:.0%} of the time is spent waiting for the data",
        explanation=f"A step waits {1000 * data.load_seconds:.0f} ms for its batch.",
        weight=confidence(0.5, 0.5 if len(evidence.losses) > 50 else 0.2),
        notes=[("share of the time", round(data.load_share, 3))],
        fix="use num_workers, pin_memory, and less work per sample",
    )
