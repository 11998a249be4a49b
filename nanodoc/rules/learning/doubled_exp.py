"""## What it checks
A single parameter, such as the logarithm of a temperature, to which the step applies exp() twice on
the way to the loss.

## Why it matters
The logarithm of 14 is 2.66; exp(14) is over a million. Scores scaled by that make every softmax
one-hot from the first step on.

## Example
    image, text, scale = model(images, tokens)    # open_clip gives logit_scale.exp()
    logits = scale.exp() * image @ text.T

## Fix
    logits = scale * image @ text.T

## See also
ND647 flattened-scores, ND612 double-softmax
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import ArgumentFacts, CallFacts
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim


@rule(
    "ND654",
    "doubled-exp",
    "critical",
    "exp() of a parameter's exp()",
    needs=("inspection",),
    preflight="loss",
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        first = calls.origin(call.arguments[0]) if call.name == "exp" else None
        if not isinstance(first, CallFacts) or first.name != "exp" or not first.arguments:
            continue
        parameter = calls.origin(first.arguments[0])
        if not isinstance(parameter, ArgumentFacts) or parameter.parameter is None:
            continue
        if math.prod(parameter.shape) != 1:
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("exp", call.index),
            title=f"exp() is applied twice to {parameter.parameter}",
            explanation=f"{parameter.parameter} already went through exp() at "
            f"{first.site.place if first.site is not None else 'an earlier call'}.",
            culprit=at_call(call, evidence),
            step=0,
            weight=confidence(0.9),
            notes=[("first exp()", first.site.place if first.site is not None else None)],
            fix="remove one of the two",
            standing=WIRED,
        )
        return
