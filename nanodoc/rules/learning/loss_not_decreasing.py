"""## What it checks
A cross entropy that stays within 2 % of ln C, what guessing among C classes costs, for a whole run
of at least 30 steps outside of a warm-up. Then one batch alone is trained on for some steps, at ten
times the learning rate too, and everything put back: a model whose loss comes down by a fiftieth
there is only slow, and is left alone.

## Why it matters
Something between inputs, labels and loss is not connected.

## Fix
See what else is reported; then try the learning rate.

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
    "the loss stays where guessing would be",
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
        explanation=f"After {len(evidence.losses)} steps the loss is {plateau.late:.4g}. Given "
        f"one batch alone for {overfit.steps} steps, at ten and a hundred times the learning "
        f"rate too, it came from {overfit.first:.3g} to {overfit.last:.3g} only, so it is not "
        "the "
        "data's difficulty.",
        culprit=at_call(plateau.loss, evidence),
        step=len(evidence.losses) - 1,
        weight=confidence(0.6, 0.5 if overfit.last > 0.9 * overfit.first else 0.2),
        notes=[
            ("ln C", plateau.chance),
            ("loss of the last steps", plateau.late),
            ("one batch alone", f"{overfit.first:.3g} → {overfit.last:.3g}"),
        ],
        fix="look at the learning rate, at the path from the inputs to the loss, and at whether "
        "labels belong to their inputs",
    )
