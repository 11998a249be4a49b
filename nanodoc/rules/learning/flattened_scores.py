"""## What it checks
A cross entropy over cosines, or other products of vectors of length 1, times a constant: its lowest
possible value, ln(1 + (C - 1) e^(-2s)) for C classes and a factor of s, is compared with ln C, the
loss of guessing.

## Why it matters
A cosine lies between -1 and 1. If it is divided by a temperature that it should be multiplied by,
or the other way round, all C scores are nearly equal whatever the model does: the loss stays at ln
C and the gradient is small.

## Example
    logits = F.normalize(a) @ F.normalize(b).T * 0.05
    loss = F.cross_entropy(logits, torch.arange(len(a)))

## Fix
    logits = F.normalize(a) @ F.normalize(b).T / 0.05

## See also
ND607 loss-not-decreasing; Radford et al. 2021 (CLIP), 2.3; Chen et al. 2020 (SimCLR), B.7
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import MATRIX_PRODUCTS, NORMS

_PASSING = ("masked_fill", "log_softmax", "to_dense")


@rule(
    "ND647",
    "flattened-scores",
    "warning",
    "a cross entropy over cosines that a scale factor makes nearly equal",
    needs=("inspection",),
    thresholds={"floor": Threshold(0.8, "lowest possible loss over ln C")},
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        classes = _classes(call)
        found = _scale(calls, call.arguments[0]) if classes >= 3 else None
        if found is None:
            continue
        factor, made = found
        floor = math.log1p((classes - 1) * math.exp(-2 * factor))
        if floor < check.limit(evidence, "floor") * math.log(classes):
            continue
        yield learning_claim(
            rule,
            location_key(made.site) or ("scores", made.index),
            title=f"the scores of {call.name} are cosines times {factor:.3g}: nearly equal "
            "whatever the model does",
            explanation=f"With a cosine of 1 for the right one of {classes:.0f} and -1 for all "
            f"others the loss is {floor:.3g}; guessing gives ln {classes:.0f} = "
            f"{math.log(classes):.3g}.",
            culprit=_culprit(made, evidence),
            step=0,
            weight=0.9,  # arithmetic on what the step computes
            notes=[("factor", f"{factor:.3g}"), ("lowest loss", f"{floor:.3g}")],
            fix="divide the cosines by a temperature of 0.05 to 0.1, or multiply them by 10 to 20",
            standing=WIRED,
        )
        return


def _classes(call: CallFacts) -> float:
    """How many scores the right one is compared with; 0 for what is no cross entropy. A logsumexp
    is the part of one that is written by hand."""
    if call.name == "logsumexp":
        return math.prod(call.arguments[0].shape) / max(math.prod(call.shape), 1)
    return call.classes


def _culprit(made: CallFacts, evidence: Evidence) -> Culprit:
    """The line that scales; of a library's loss, the one that makes it."""
    inspection = evidence.inspection
    made_at = inspection.criterion_at if inspection is not None else None
    culprit = at_call(made, evidence)
    if made.called_from is None or made_at is None:
        return culprit
    return replace(culprit, location=made_at)


def _scale(calls: StepCalls, argument: ArgumentFacts) -> tuple[float, CallFacts] | None:
    """(the factor, the last call that applies it or makes the cosines) of scores that are cosines
    times a constant; None for all others, also where a tensor scales them, which may learn."""
    factor, scaled = 1.0, None
    for _ in range(len(calls.calls)):
        made = calls.maker(argument)
        if made is None or not made.arguments:
            return None
        if _is_cosine(calls, made):
            return factor, scaled or made
        by = made.notes.number.factor
        if by is not None and len(made.arguments) == 1:
            factor *= by
            scaled = scaled or made
        elif not made.same_values and made.name not in _PASSING:
            return None
        argument = made.arguments[0]
    return None


def _is_cosine(calls: StepCalls, call: CallFacts) -> bool:
    if call.name == "cosine_similarity":
        return True
    return (
        call.name in MATRIX_PRODUCTS
        and len(call.arguments) == 2
        and all(_has_length_1(calls, argument) for argument in call.arguments)
    )


def _has_length_1(calls: StepCalls, argument: ArgumentFacts) -> bool:
    """It comes from `normalize`, or from a division by its own norm."""
    made = calls.origin(argument)
    if not isinstance(made, CallFacts):
        return False
    if made.name == "normalize":
        return True
    if made.name != "div" or len(made.arguments) != 2:
        return False
    norm = calls.origin(made.arguments[1])
    return (
        isinstance(norm, CallFacts)
        and norm.name in NORMS
        and bool(norm.arguments)
        and norm.arguments[0] == made.arguments[0]
    )
