"""## What it checks
BatchNorm layers in training mode with momentum 0.

## Why it matters
Training looks right; in eval mode the layer normalises by statistics that are still mean 0 and
variance 1.

## Example
    nn.BatchNorm2d(64, momentum=0.0)

## Fix
    nn.BatchNorm2d(64)       # 0.1: the share of the new value

## See also
ND613 wrong-mode
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    learning_claim,
)


@rule(
    "ND625",
    "frozen-statistics",
    "warning",
    "batch norm statistics that never move",
    needs=("inspection",),
    preflight="modes",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    still = [mode for mode in inspection.modes if mode.momentum == 0 and mode.training]
    if still:
        first = still[0]
        yield learning_claim(
            rule,
            location_key(first.made_at) or ("statistics", first.module),
            title=f"{first.module_type} with momentum 0 never updates its running statistics"
            + (f" ({len(still)} layers)" if len(still) > 1 else ""),
            explanation="In training it normalises by the batch; in eval mode it will normalise by "
            "running statistics that are still mean 0 and variance 1. torch's momentum is the "
            "share of the new value, not of the old.",
            culprit=Culprit(
                kind="module",
                module=first.module,
                module_type=first.module_type,
                location=first.made_at,
            ),
            weight=confidence(0.8, 0.6 if all(record.untouched for record in still) else 0.0),
            step=0,
            notes=[("momentum", 0.0)],
            fix="momentum=0.1 (torch's 0.1 is what other libraries call 0.9)",
        )
