"""## What it checks
A step whose labels are its input tokens one position later: the gradient of the scores at two
positions with respect to the embedded tokens. Where the scores depend on a later token, the model
reads the answer.

## Why it matters
The training loss falls to almost nothing, and what the model writes is noise: the answer is not
there when it generates.

## Example
    scores = scores.masked_fill(mask == 0, -1e-9)   # meant: -inf

## Fix
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
    scores.masked_fill(later, float("-inf"))

## See also
ND116 inverted-mask, ND117 unshifted-labels
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import RECURRENT, CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    calls_into_the_loss,
    is_attention,
    learning_claim,
)

_MASKING = ("masked_fill", "where", "add", "sub")


@rule(
    "ND118",
    "missing-causal-mask",
    "critical",
    "a model of the next token that reads the next token",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.sequence if inspection is not None else None
    if inspection is None or seen is None or seen.distance != 1 or seen.reads_later <= 0:
        return
    call = _leak(evidence)
    culprit = at_call(call, evidence) if call is not None else None
    place = culprit.location if culprit is not None else seen.at
    yield learning_claim(
        rule,
        location_key(place) or ("mask", "causal"),
        standing=Standing(stage=Stage.WIRING),
        title="the model reads the token that it is to predict",
        explanation="The labels are the input tokens one position later, and the scores of a "
        "position depend on such a later token: "
        + (
            "a recurrent layer runs backwards, too."
            if call is not None and call.name in RECURRENT
            else "no mask hides what comes after, or not all of it."
        ),
        culprit=culprit or Culprit(kind="op", location=place),
        step=inspection.step,
        weight=confidence(0.9, 0.3 if seen.reads_later > 1 else 0.0),
        notes=[
            ("positions looked at that depend on a later token", f"{seen.reads_later} of 2"),
            ("labels compared", seen.labels),
        ],
        fix="hide the later positions: is_causal=True, or -inf (not a small number) where the key "
        "comes after the query",
    )


def _leak(evidence: Evidence) -> CallFacts | None:
    """The call that should have hidden the later positions."""
    for calls, call in calls_into_the_loss(evidence):
        if call.name in RECURRENT:
            return call
        if is_attention(call):
            return (_mask(calls, call) if call.name == "softmax" else None) or call
    return None


def _mask(calls: StepCalls, softmax: CallFacts) -> CallFacts | None:
    """What was to mask the scores."""
    argument = softmax.arguments[0]
    for _ in range(4):
        made = calls.maker(argument)
        if made is None or made.name in _MASKING:
            return made
        if not made.arguments or made.shape != softmax.shape:
            return None
        argument = made.arguments[0]
    return None
