"""## What it checks
The terms of the loss in the last step. A term is reported that changes nothing: the other term is a
million and more, and so much larger that their sum, in its dtype, is bitwise the larger one.

## Why it matters
The smaller term is not trained on. A loss of a million is no calibrated one either: something in
the larger term is not normalised, or is multiplied where it should be divided.

## Example
    loss = (targets * log_ratio).sum() + 0.5 * weights.norm() ** 2     # 1e13 + 0.7

## Fix
Bring the larger term to the size of the other: normalise what it is made of, or take its mean.

## See also
ND606 divergence, ND611 initial-loss
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.learning.claims import Standing, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import ADDITIONS
from nanodoc.vocabulary.ops import HALF_UNIT


@rule(
    "ND666",
    "absorbed-term",
    "warning",
    "a term of the loss that rounding takes away",
    needs=("inspection",),
    thresholds={"large": Threshold(1e6, "a loss of this size is not calibrated")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    if evidence.trip is not None:
        return
    for large, small in _absorbed(evidence, check.limit(evidence, "large")):
        value, lost = large.notes.value or 0.0, small.notes.value or 0.0
        yield learning_claim(
            rule,
            ("absorbed",),
            standing=Standing(scope=Scope.LAYERS),
            title=f"a term of the loss of {lost:.3g} is absorbed by another of {value:.3g}",
            explanation=f"Their sum is bitwise {value:.7g}: rounding takes the whole magnitude of "
            f"the smaller term ({small.name}"
            + (f" at {small.site.place}" if small.site is not None else "")
            + "). The larger term is far from any calibrated loss.",
            culprit=at_call(large, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.6, 0.4 if abs(evidence.losses[0]) > abs(value) else 0.2),
            notes=[
                ("first loss", evidence.losses[0]),
                ("larger term", value),
                ("smaller term", lost),
            ],
            fix="normalise what the larger term is made of, or check for a multiplication where a "
            "division was meant",
        )
        return


def _absorbed(evidence: Evidence, least: float) -> Iterator[tuple[CallFacts, CallFacts]]:
    """(a term, one that is added to it and changes nothing)"""
    for calls, call in calls_into_the_loss(evidence):
        if call.name not in ADDITIONS or call.shape or len(call.arguments) != 2:
            continue
        terms = [calls.maker(a) for a in call.arguments if a.requires_grad and not a.shape]
        known = [t for t in terms if t is not None and math.isfinite(t.notes.value or math.nan)]
        unit = HALF_UNIT.get(call.arguments[0].dtype)
        if len(known) != 2 or unit is None:
            continue
        small, large = sorted(known, key=lambda term: abs(term.notes.value or 0.0))
        size, other = abs(large.notes.value or 0.0), abs(small.notes.value or 0.0)
        if size >= least and 0 < other < unit * size:
            yield large, small
