"""## What it checks
A gradient penalty (WGAN-GP) on images that takes the norm of a gradient from `torch.autograd.grad`,
of shape (N, C, H, W), over the channels only and subtracts a number from it: each pixel, not each
sample, should then have a gradient of norm 1.

## Why it matters
The penalty asks for a gradient √(H·W) times too large. The critic trains, but badly.

## Example
    (gradient.norm(2, dim=1) - 1) ** 2

## Fix
    (gradient.flatten(1).norm(2, dim=1) - 1) ** 2

## See also
Gulrajani et al. 2017, Improved Training of Wasserstein GANs, algorithm 1
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import at_call, calls_of, learning_claim
from nanodoc.vocabulary.calls import NORMS

_PICTURES = (4, 5)  # dimensions of a batch
_MOST_CHANNELS = 4


@rule(
    "ND631",
    "penalty-per-pixel",
    "warning",
    "a gradient penalty that asks for a norm of 1 at every pixel",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    calls = calls_of(evidence)
    if calls is None:
        return
    reaching = calls.reaching_the_loss()
    for call in calls.calls:
        if call.index not in reaching:
            continue
        gradient = _gradient_of(calls, call)
        if gradient is None or not _less_a_number(calls, call):
            continue
        shape, pixels = gradient.shape, math.prod(gradient.shape[2:])
        yield learning_claim(
            rule,
            location_key(call.site) or ("penalty",),
            title=f"the gradient penalty is taken per pixel ({pixels}), not per sample",
            explanation=f"The gradient has shape {shape}, and its norm over dimension 1 has shape "
            f"{call.shape}: a gradient of norm 1 at every pixel has a total norm of √{pixels} "
            f"= {math.sqrt(pixels):.3g}.",
            culprit=at_call(call, evidence),
            weight=confidence(0.8, 0.3 if shape[1] <= _MOST_CHANNELS else 0.0),
            notes=[("gradient", str(shape)), ("norms", str(call.shape))],
            fix="flatten the gradient first: gradient.flatten(1).norm(2, dim=1)",
        )
        return


def _gradient_of(calls: StepCalls, call: CallFacts) -> CallFacts | None:
    """What `autograd.grad` gave, where the call is its norm over the channels alone, also written
    as the root of a sum of squares."""
    if call.name in NORMS and call.arguments:
        made = calls.origin(call.arguments[0])
    elif call.name == "sqrt" and call.arguments:
        total = calls.origin(call.arguments[0], elementwise=True)
        if not isinstance(total, CallFacts) or total.name != "sum" or not total.arguments:
            return None
        made = calls.origin(total.arguments[0], elementwise=True)
    else:
        return None
    if not isinstance(made, CallFacts) or made.name != "grad" or len(made.shape) not in _PICTURES:
        return None
    left = (made.shape[0], *made.shape[2:])
    kept = (made.shape[0], 1, *made.shape[2:])
    return made if call.shape in (left, kept) else None


def _less_a_number(calls: StepCalls, norm: CallFacts) -> bool:
    return any(
        later.name == "sub"
        and len(later.arguments) == 1
        and later.arguments[0].made_by == norm.index
        for later in calls.calls[norm.index + 1 :]
    )
