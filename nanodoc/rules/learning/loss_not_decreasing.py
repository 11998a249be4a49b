"""## What it checks
A cross entropy that stays within 2 % of ln C, the loss of guessing among C classes, for a whole run
of at least 30 steps outside of a warm-up. The model is then trained for some steps on a single
batch, also at ten times the learning rate, and restored: a model whose loss falls by a fiftieth
there is only slow, and is not reported.

A training of at least 100 steps whose loss ends where the best constant answer would be, or above,
and falls no further, or is still a hundred times as high. What that answer costs is measured from
the targets of the last batches: the entropy of the labels, the variance of the numbers. Only a
single loss against targets that no network computes is judged; not those of policies, critics,
adversaries or pairs of one batch.

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
from nanodoc.facts.learning import no_better_than_constant
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
    yield from _no_better(rule, evidence)
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


def _no_better(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    found = no_better_than_constant(evidence)
    if found is None:
        return
    call, notes = found
    steps = len(evidence.losses)
    of = f"{notes.kinds} classes" if notes.kinds > 1 else "numbers"
    yield learning_claim(
        rule,
        ("stuck",),
        standing=Standing(scope=Scope.MODEL, specificity=Specificity.FALLBACK),
        title=f"after {steps} steps the loss is no lower than that of a constant answer: "
        f"{notes.value:.4g}, and {notes.constant:.4g} for the constant",
        explanation=f"The best constant is that of the last {notes.targets} targets ({of}). A "
        "model that ignores its inputs costs as much as this one.",
        culprit=at_call(call, evidence),
        step=steps - 1,
        weight=confidence(0.3, min(notes.targets / 2_000, 0.4)),
        notes=[
            (f"{call.name} at the end", notes.value),
            ("best constant answer", notes.constant),
            ("targets", notes.targets),
        ],
        fix="check the path from the inputs to the loss, whether labels belong to their inputs, "
        "and the learning rate",
    )
