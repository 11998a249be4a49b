"""## What it checks
The share of a hidden sigmoid's or tanh's outputs where its derivative is below 0.01: more than half
is a warning, or an info if the loss has no fixed targets, such as that of a policy. At the end of
the run, its last batch and up to three earlier ones are run once more with the final weights. The
model's outputs and gates (sigmoids that are multiplied with something) are skipped: they may
saturate on purpose.

## Why it matters
Each such layer shrinks the gradient to a hundredth of its size.

## Example
    nn.init.normal_(layer.weight, std=1.0)      # 256 inputs: pre-activations of ±16

## Fix
Normalised inputs, smaller weights (xavier_uniform_).

## See also
ND602 vanishing-gradients
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Scope, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.course import is_one_supervised_loss
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    SHORTEST,
    Standing,
    at_call,
    learning_claim,
)
from nanodoc.rules.learning.units import FEWEST_UNITS, FEWEST_VALUES
from nanodoc.vocabulary.calls import BATCHED_PRODUCTS

_PARTS = ("chunk", "split", "unbind", "sub")  # 1 − z is a gate as z is


@rule(
    "ND604",
    "saturated-activations",
    "warning",
    "sigmoid or tanh in its flat region",
    needs=("inspection",),
    thresholds={"share": Threshold(0.5, "share of the outputs in the flat region")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    if inspection is None or len(evidence.losses) < SHORTEST:
        return
    calls = inspection.calls
    gates = _gates(calls)
    for unit in inspection.units:
        if (
            unit.saturated <= check.limit(evidence, "share")
            or unit.output
            or unit.call.index in gates
            or unit.values < FEWEST_VALUES * FEWEST_UNITS
        ):
            continue
        yield learning_claim(
            rule,
            location_key(unit.call.site) or ("units", unit.call.module),
            standing=Standing(scope=Scope.LAYERS),
            title=f"{unit.saturated:.0%} of {unit.call.name}'s outputs lie in its flat region",
            explanation="Its derivative is below 0.01 there: at most a hundredth of the gradient "
            "reaches the layers before it.",
            culprit=at_call(unit.call, evidence),
            # the loss of a policy or a critic tells nothing of what its network has learnt
            severity=rule.severity if is_one_supervised_loss(evidence) else "info",
            step=inspection.step,
            weight=confidence(
                0.6, 0.5 if unit.saturated > 0.9 else 0.2, 0.3 if inspection.batches > 1 else 0.0
            ),
            notes=[
                ("share in the flat region", round(unit.saturated, 3)),
                ("values examined", unit.values),
            ],
            fix="use normalised inputs, smaller initial weights, or normalisation before the "
            "activation",
        )
        return


def _gates(calls: StepCalls) -> set[int]:
    """Calls whose output, perhaps as a view or a part, is multiplied with something or blends two
    things."""
    found = set()
    for call in calls.calls:
        if call.name in (*BATCHED_PRODUCTS, "mul", "lerp", "addcmul", "where", "einsum"):
            for argument in call.arguments:
                made = calls.origin(argument)
                while isinstance(made, CallFacts):
                    found.add(made.index)
                    shifted = made.name == "add" and len(made.arguments) == 1
                    if not made.arguments or not (shifted or made.name in _PARTS):
                        break
                    made = calls.origin(made.arguments[0])
    return found
