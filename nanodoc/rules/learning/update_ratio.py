"""## What it checks
Parameters whose values are bitwise the same as at step 0 although they get gradients, an optimizer
holds them and no learning rate was zero. `--stats` prints the update ratio |Δw|/|w| of each;
healthy values lie between 1e-5 and 1e-1.

## Why it matters
In bfloat16 a weight of 1.0 changes by 0.008 or not at all: small updates are rounded away, step
after step.

## Example
    model = model.bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

## Fix
Keep weights in float32 under autocast, or use an optimizer with master weights.

## See also
ND506 parameter-not-in-optimizer, ND609 learning-rate-range
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.loop import DISCARDED, NEVER_STEPPED, ParameterStats
from nanodoc.rules.base import count
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    learning_claim,
)
from nanodoc.rules.learning.units import shown_names

_FELT = 1e-7  # mean |g|


@rule(
    "ND605",
    "update-ratio",
    "warning",
    "updates too small to change a weight",
    needs=("stats",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    stats = evidence.stats
    if (
        stats is None
        or len(evidence.losses) < SHORTEST
        or not evidence.optimizer_sites
        or evidence.trip is not None
    ):
        return
    # a warm-up, or a group that is frozen by its rate
    if not stats.rates or any(not rates or min(rates) == 0 for rates in stats.rates):
        return
    if (
        evidence.loop is not None
        and evidence.loop.optimizer_steps is not None
        and evidence.loop.optimizer_steps < SHORTEST
    ):
        return
    missing = (
        {p.name for p in evidence.ownership.missing} if evidence.ownership is not None else set()
    )
    still = [
        p
        for p in stats.parameters
        if p.trainable and p.moved == 0.0 and _is_felt(p) and p.name not in missing
    ]
    moving = [p for p in stats.parameters if p.moved]
    loop = evidence.loop
    if not still or (loop and (loop.misuse(DISCARDED) or loop.misuse(NEVER_STEPPED))):
        return
    first = still[0]
    yield learning_claim(
        rule,
        ("updates", "none"),
        standing=Standing(scope=Scope.LAYERS),
        title=f"{count(len(still), 'parameter')} {'has' if len(still) == 1 else 'have'} not "
        f"changed by a single bit in {len(evidence.losses)} steps: {shown_names(still)}",
        explanation=f"They get gradients (norm {first.grad_norm:.2g} for {first.name}), an "
        "optimizer holds them, and the learning rate is not zero: the updates are too small "
        "to change the values in their dtype, or something resets the values.",
        culprit=Culprit(
            kind="parameter",
            parameter=first.name,
            module=first.name.rpartition(".")[0],
            module_type=first.module_type,
            location=next((site for site in evidence.optimizer_sites if site is not None), None),
        ),
        phase="optimizer",
        step=len(evidence.losses) - 1,
        weight=confidence(0.7, 0.4 if len(still) > 2 or not moving else 0.1),
        notes=[
            ("not changed", shown_names(still)),
            ("learning rate", f"{max(stats.rates[-1]):.3g}"),
        ],
        fix="keep the weights in float32 (autocast instead of half-precision parameters), or "
        "raise the learning rate",
    )


def _is_felt(parameter: ParameterStats) -> bool:
    """A gradient that is more than rounding: that of a bias before BatchNorm is nothing else."""
    return (
        len(parameter.shape) >= 2
        and (parameter.grad_norm or 0.0) / math.sqrt(math.prod(parameter.shape)) > _FELT
    )
