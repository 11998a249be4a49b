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
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, Stage, confidence
from nanodoc.diagnosis.finding import Culprit
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import RECURRENT, CallFacts, StepCalls, is_attention
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    calls_into_the_loss,
    learning_claim,
)

_MAKING = ("tril", "triu", "ones", "full", "ge", "gt", "le", "lt")
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
    if any("sees_only_later" in call.notes for call in inspection.calls.calls):
        return  # ND116: it is there, upside down
    call = _leak(evidence)
    culprit = at_call(call, evidence) if call is not None else None
    place = culprit.location if culprit is not None else seen.at
    calls = inspection.calls
    made = _made(calls, call) if call is not None else None
    at = made.site if made is not None else inspection.reader_at
    if culprit is not None and at is not None:
        culprit = replace(culprit, location=at)
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
            masked = _mask(calls, call) if call.name == "softmax" else None
            return masked or call
    return None


def _made(calls: StepCalls, attention: CallFacts) -> CallFacts | None:
    """The user's own call that makes the mask which the attention is given, of one value for each
    pair of positions; None where it is given none."""
    for argument in attention.arguments[3:]:
        places = argument.shape[-2:]
        if argument.requires_grad or len(places) < 2 or places[0] != places[1]:
            continue
        behind, _ = calls.behind(argument)
        own = [calls.calls[index] for index in sorted(behind) if not calls.calls[index].called_from]
        made = [call for call in own if call.name in _MAKING and call.location is not None]
        if made:
            return made[-1]
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
