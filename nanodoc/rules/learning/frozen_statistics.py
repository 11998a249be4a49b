"""## What it checks
BatchNorm layers in training mode with momentum 0, or with momentum 0.9 or more.

## Why it matters
Training looks right; in eval mode the layer normalises with statistics that are still mean 0 and
variance 1, or by those of the last batch alone.

## Example
    nn.BatchNorm2d(64, momentum=0.0)

## Fix
    nn.BatchNorm2d(64)       # 0.1: the weight of the new value

## See also
ND613 wrong-mode
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import ModeFacts
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    learning_claim,
)

_FORGETS = 0.9  # Keras' default of 0.99, and older codes' 0.9, are shares of the old value


@rule(
    "ND625",
    "frozen-statistics",
    "warning",
    "batch norm statistics that never update, or forget all but the last batch",
    needs=("inspection",),
    preflight="modes",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    trained = [mode for mode in inspection.modes if mode.training]
    still = [mode for mode in trained if mode.momentum == 0]
    forgetful = [mode for mode in trained if _FORGETS <= (mode.momentum or 0.0) < 1]
    if forgetful:
        yield _forgets(rule, forgetful)
    elif still:
        first = still[0]
        yield learning_claim(
            rule,
            location_key(first.made_at) or ("statistics", first.module),
            title=f"{first.module_type} with momentum 0 never updates its running statistics"
            + (f" ({len(still)} layers)" if len(still) > 1 else ""),
            explanation="In training it normalises with the batch; in eval mode it will "
            "normalise with running statistics that are still mean 0 and variance 1. torch's "
            "momentum is the weight of the new value, not of the old one.",
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


def _forgets(rule: Rule, layers: list[ModeFacts]) -> Claim:
    first = layers[0]
    momentum = first.momentum or 0.0
    return learning_claim(
        rule,
        location_key(first.made_at) or ("statistics", first.module),
        title=f"{first.module_type} with momentum {momentum:g} keeps little but the last batch in "
        "its running statistics" + (f" ({len(layers)} layers)" if len(layers) > 1 else ""),
        explanation=f"torch's momentum is the weight of the new value: {momentum:.0%} of each "
        "statistic is from the last batch alone, and in eval mode the layer normalises with "
        f"that. What other libraries call {momentum:g} is {1 - momentum:.2g} here.",
        culprit=Culprit(
            kind="module",
            module=first.module,
            module_type=first.module_type,
            location=first.made_at,
        ),
        # one layer may be meant so; a whole network with the number of another library is not
        weight=confidence(0.6, 0.5 if len(layers) > 1 else 0.3),
        step=0,
        notes=[("momentum", momentum), ("layers", len(layers))],
        fix=f"momentum={1 - momentum:.2g}",
    )
