"""## What it checks
A call of the last step that multiplies or divides a tensor in place, at least doubling or halving
it. The tensor was made before the step, belongs neither to the batch nor to the model, and is not
trained. Only constants change it, nothing else writes to it, and the loss depends on it.

## Why it matters
Each step changes the tensor again. Divided by 255 in every step, an image is black after a few.

## Example
    def normalise(pictures):
        pictures = pictures.div_(255)
        return (pictures - mean) / std

    target = features(normalise(style))      # in each step

## Fix
    pictures = pictures / 255

## See also
ND119 changing-items
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, Threshold, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_of, learning_claim

_VERBS = {"mul": "multiplies", "div": "divides"}


@rule(
    "ND638",
    "repeated-rescaling",
    "critical",
    "a constant that every step rescales in place",
    needs=("inspection",),
    thresholds={"factor": Threshold(2.0, "times as large, or as small: a thousand in ten steps")},
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index not in reaching or not _rescales_a_constant(calls, call):
            continue
        # what fades by a hundredth is meant to
        factor = call.notes.number.factor if call.notes.number.factor is not None else 1.0
        least = check.limit(evidence, "factor")
        if 1 / least < factor < least:
            continue
        # each step has written into it: an array that the step reads anew has no such past
        if (call.notes.written or 0) < max(2, len(evidence.losses) - 1):
            continue
        verb = _VERBS[call.name]
        yield learning_claim(
            rule,
            location_key(call.site) or ("rescaled", call.index),
            title=f"each step {verb} a constant in place again",
            explanation=f"A tensor of shape {call.shape} that was made outside of the step is the "
            f"target of an in-place {call.name} with the same value in each step. The loss "
            "depends on it.",
            culprit=at_call(call, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.85, 0.3 if not 0.1 < factor < 10 else 0.0),
            notes=[("shape", str(call.shape)), ("factor", f"{factor:.3g}")],
            fix=f"keep the tensor unchanged: {call.name} without the underscore returns a new one",
            standing=WIRED,
        )
        return


def _rescales_a_constant(calls: StepCalls, call: CallFacts) -> bool:
    if not call.in_place or call.name not in _VERBS or not call.arguments or call.requires_grad:
        return False
    target, *others = call.arguments
    outside = target.made_by is None and target.leaf is None and "float" in target.dtype
    if not outside or math.prod(target.shape) < 2:  # a counter, a temperature
        return False
    if any(_changes(calls, other.made_by, other.leaf) for other in others):
        return False
    # a running mean is scaled first, and then something of the step is added to it
    return not call.notes.overwritten and not any(
        later.in_place and later.arguments and later.arguments[0].made_by == call.index
        for later in calls.calls
    )


def _changes(calls: StepCalls, made_by: int | None, leaf: str | None) -> bool:
    """It is made of the batch or of the model, or drawn at random."""
    if made_by is None:
        return leaf is not None
    call = calls.calls[made_by]
    return (
        call.name.startswith(("rand", "normal", "bernoulli", "dropout"))
        or call.requires_grad
        or any(_changes(calls, a.made_by, a.leaf) for a in call.arguments)
    )
