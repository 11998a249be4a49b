"""## What it checks
The first cross entropy against ln C. At twice ln C and above it is reported: as an info, or as a
warning if it has not come down to ln C by the end of the run.

## Why it matters
The model begins sure of wrong answers and spends its first steps unlearning them.

## Example
    nn.init.normal_(self.head.weight)      # logits of ±16

## Fix
Smaller weights in the last layer, normalised inputs.

## See also
ND610 poor-initialisation
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, Specificity, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CLASSIFICATION, ArgumentFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    calls_of,
    learning_claim,
    loss_call,
)

_PLATEAU = 30  # steps without any progress


@rule(
    "ND611",
    "initial-loss",
    "warning",
    "the first loss is far above that of guessing",
    needs=("inspection",),
    thresholds={"times-chance": Threshold(2.0, "first loss over ln C")},
    preflight="initial loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    loss = loss_call(calls, CLASSIFICATION) if calls is not None else None
    if (
        loss is None
        or calls is None
        or not evidence.losses
        or loss.index not in calls.losses
        or loss.reduction != "mean"
    ):
        return
    target = calls.origin(loss.arguments[1]) if len(loss.arguments) > 1 else None
    # positions, as contrastive losses compare with
    if not isinstance(target, ArgumentFacts) or not target.of_batch:
        return
    chance = math.log(max(loss.notes.get("classes", 0), 1))
    began = evidence.losses[0]
    if (
        chance <= 0
        or not math.isfinite(began)
        or began < check.limit(evidence, "times-chance") * chance
    ):
        return
    last = statistics.median(evidence.losses[-5:])
    yield learning_claim(
        rule,
        ("initial-loss",),
        standing=Standing(scope=Scope.MODEL, specificity=Specificity.FALLBACK),
        title=f"the loss starts at {began:.3g}; guessing among {loss.notes['classes']:.0f} classes "
        f"costs ln {loss.notes['classes']:.0f} = {chance:.3g}",
        explanation="The untrained model is sure of wrong answers: its first outputs are too "
        "large, by the scale of the initial weights or of the inputs."
        + (" It has not come down to chance since." if last >= chance else ""),
        culprit=at_call(loss, evidence),
        severity="warning" if last >= chance and len(evidence.losses) >= _PLATEAU else "info",
        step=0,
        weight=confidence(0.6, 0.4 if last >= chance else 0.1),
        notes=[("loss at step 0", began), ("ln C", chance), ("loss now", last)],
        fix="smaller weights in the last layer, normalised inputs",
    )
