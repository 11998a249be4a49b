"""## What it checks
A cross entropy that stays within 2 % of ln C, the loss of guessing among C classes, for a whole run
of at least 30 steps outside of a warm-up. The model is then trained for some steps on a single
batch, also at ten times the learning rate, and restored: a model whose loss falls by a fiftieth
there is only slow, and is not reported.

## Why it matters
Something between inputs, labels and loss is not connected.

## Fix
Check what else is reported; then try other learning rates.

## See also
ND617 cannot-overfit-one-batch
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import stuck_at_chance
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    learning_claim,
)

_NOTHING = 0.98  # of the loss on one batch alone: less is learning, if slowly


@rule(
    "ND607",
    "loss-not-decreasing",
    "warning",
    "the loss stays at the level of guessing",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    plateau, overfit = stuck_at_chance(evidence), evidence.overfit
    # a hard task, or too few steps
    if (
        plateau is None
        or overfit is None
        or overfit.asked
        or overfit.last < _NOTHING * overfit.first
    ):
        return
    yield learning_claim(
        rule,
        ("stuck",),
        standing=Standing(scope=Scope.MODEL, specificity=Specificity.FALLBACK),
        title=f"the loss stays at ln {plateau.classes} = {plateau.chance:.3g}: the model does no "
        "better than guessing",
        explanation=f"After {len(evidence.losses)} steps the loss is {plateau.late:.4g}. On a "
        f"single batch for {overfit.steps} steps, also at ten and a hundred times the "
        f"learning rate, it only went from {overfit.first:.3g} to {overfit.last:.3g}, so the "
        "difficulty of the data is not the cause.",
        culprit=at_call(plateau.loss, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.6, 0.5 if overfit.last > 0.9 * overfit.first else 0.2),
        notes=[
            ("ln C", plateau.chance),
            ("loss of the last steps", plateau.late),
            ("a single batch", f"{overfit.first:.3g} → {overfit.last:.3g}"),
        ],
        fix="check the learning rate, the path from the inputs to the loss, and whether labels "
        "belong to their inputs",
    )
