"""## What it checks
A regression loss on the output of ReLU, sigmoid, tanh or softmax, or on a cosine similarity, with
at least a tenth of the targets outside of its range.

## Why it matters
The model is pushed into the flat region of its last activation and stays there.

## Example
    return torch.sigmoid(self.head(x))        # targets up to 40

## Fix
No activation on the output of a regression, or scaled targets.

## See also
ND603 dead-units
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter

from nanodoc.diagnosis.claim import Claim, Specificity, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    learning_claim,
    loss_call,
)
from nanodoc.vocabulary.calls import REGRESSION

# What an activation returns, and the share of targets outside of that.
_RANGES = {
    "relu": (0.0, math.inf, attrgetter("below_0")),
    "sigmoid": (0.0, 1.0, attrgetter("outside_01")),
    "softmax": (0.0, 1.0, attrgetter("outside_01")),
    "tanh": (-1.0, 1.0, attrgetter("outside_11")),
    "cosine_similarity": (-1.0, 1.0, attrgetter("outside_11")),
}


@rule(
    "ND629",
    "unreachable-target",
    "critical",
    "an output activation that cannot produce the targets",
    needs=("inspection",),
    thresholds={"share": Threshold(0.1, "share of the targets outside the activation's range")},
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None:
        return
    calls = inspection.calls
    loss = loss_call(calls, REGRESSION)
    made = calls.origin(loss.arguments[0]) if loss is not None and len(loss.arguments) > 1 else None
    if (
        loss is None
        or not isinstance(made, CallFacts)
        or not loss.arguments[0].requires_grad
        or loss.arguments[1].requires_grad
    ):
        return
    if made.name not in _RANGES:
        return
    low, high, outside = _RANGES[made.name]
    share, targets = outside(loss.notes.loss), loss.notes.loss.targets
    if targets is None or share < check.limit(evidence, "share"):
        return
    culprit = at_call(made, evidence)
    cosine = made.name == "cosine_similarity"
    # a loss of a library that takes the similarity itself is named where it is made
    of_library = inspection.criterion_at is not None and _function(made) == _function(loss)
    if of_library:
        scaled = inspection.labels_at if cosine else None
        culprit = replace(culprit, location=scaled or inspection.criterion_at)
    yield learning_claim(
        rule,
        location_key(made.site) or ("units", made.module),
        title=f"{made.name} on the output cannot reach {share:.0%} of the targets",
        explanation=f"{made.name} returns values in [{low:g}, {high:g}]; the targets range from "
        f"{targets.low:.3g} to {targets.high:.3g}. "
        + (
            "All pairs are pulled together as far as possible."
            if cosine
            else "The model is pushed into the flat region of its last activation."
        ),
        culprit=culprit,
        step=0,
        weight=confidence(0.8, 0.5 if share > 0.3 else 0.1),
        standing=Standing(specificity=Specificity.SPECIAL),
        notes=[("targets out of reach", f"{share:.0%}")],
        fix="scale the targets to its range: from -1, or 0, to 1"
        if cosine
        else "use no activation on the output of a regression, or scale the targets to its range",
    )


def _function(call: CallFacts) -> tuple[str, str] | None:
    place = call.location
    return (place.file, place.function) if place is not None else None
