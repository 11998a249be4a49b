"""## What it checks
A classification loss whose outputs and targets were both flattened from two dimensions, by their
shapes: one from (N, T), the other from (T, N). Dimensions of equal sizes can't be told apart.

## Why it matters
Each output is compared with the target of a different position. The loss falls to what the class
frequencies allow, and no further.

## Example
    F.cross_entropy(out.flatten(0, 1), target.t().flatten())      # out is (N, T, C)

## Fix
    F.cross_entropy(out.flatten(0, 1), target.flatten())

## See also
ND121 mixed-dimensions
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import (
    CLASSIFICATION,
    DROPOUTS,
    POSITION_NORMALISATIONS,
    RESHAPING,
    SOFTMAXES,
)

_BY_ROWS = (*SOFTMAXES, *DROPOUTS, *POSITION_NORMALISATIONS, "linear")

Shape = tuple[int, ...]


@rule(
    "ND125",
    "misaligned-targets",
    "critical",
    "outputs and targets flattened in different orders",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        if call.name not in CLASSIFICATION or len(call.arguments) < 2:
            continue
        outputs = _flattened(calls, call.arguments[0], 1)
        targets = _flattened(calls, call.arguments[1], 0)
        if outputs is None or targets is None or not _reversed(outputs, targets):
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("misaligned", call.index),
            title=f"outputs are flattened from {outputs} and targets from {targets}",
            explanation="Row by row, each output is compared with the target of a different "
            "position.",
            culprit=at_call(call, evidence),
            step=0,
            # long dimensions are the same in another order by chance less often
            weight=confidence(0.7, 0.5 if min(outputs) > 2 else 0.1),
            notes=[("outputs", str(outputs)), ("targets", str(targets))],
            fix="flatten both in the same order: transpose neither, or both",
            standing=WIRED,
        )
        return


def _flattened(calls: StepCalls, argument: ArgumentFacts, features: int) -> Shape | None:
    """The two dimensions that became one on the way to `argument`, whose rows stay what they are;
    `features` dimensions stand behind them."""
    for _ in range(len(calls.calls)):
        made = calls.maker(argument)
        if made is None or not made.arguments:
            return None
        before = made.arguments[0].shape
        joins = made.name in RESHAPING and len(before) == 2 + features
        if joins and len(made.shape) == 1 + features and made.shape[0] == before[0] * before[1]:
            return before[:2]
        if made.name not in _BY_ROWS and not made.same_values:
            return None
        argument = made.arguments[0]
    return None


def _reversed(one: Shape, other: Shape) -> bool:
    return len(one) == 2 and one == other[::-1] and one[0] != one[1] and 1 not in one
