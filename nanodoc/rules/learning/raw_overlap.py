"""## What it checks
An overlap loss (Dice, IoU) computed from a layer's raw output: its product with a mask of zeros and
ones, divided by sums of both, with scores outside of 0 to 1.

## Why it matters
The overlap of scores of any size and sign is unbounded: the loss leaves 0 to 1, falls below zero,
or jumps when the sums in the denominator get close to zero.

## Example
    overlap = (scores * mask).sum()           # scores = model(x)
    loss = 1 - 2 * overlap / (scores.sum() + mask.sum())

## Fix
    share = scores.sigmoid()
    loss = 1 - 2 * (share * mask).sum() / (share.sum() + mask.sum())

MONAI's DiceLoss: `sigmoid=True`; it ignores `softmax=True` for a single channel.

## See also
ND612 double-softmax, ND642 misplaced-softmax
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import LAYERS

_BEYOND = 0.05  # of 0 and of 1


@rule(
    "ND655",
    "raw-overlap",
    "critical",
    "an overlap loss computed from raw scores",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        masked = call.notes.product.masked
        if masked is None or (masked.low >= -_BEYOND and masked.high <= 1 + _BEYOND):
            continue
        low, high = masked.low, masked.high
        scores = _scores(calls, call)
        if scores is None or not _is_overlap(calls, call, scores):
            continue
        inspection = evidence.inspection
        made = inspection.criterion_at if inspection is not None else None
        culprit = at_call(call, evidence)
        if call.called_from is not None and made is not None:
            culprit = replace(culprit, location=made)
        yield learning_claim(
            rule,
            location_key(culprit.location) or ("overlap", call.index),
            title="the overlap is computed from raw scores",
            explanation="The scores that are multiplied by the mask are the raw output of "
            f"{scores.module or scores.name}, from {low:.3g} to {high:.3g}. An overlap needs "
            "values between 0 and 1.",
            culprit=culprit,
            step=inspection.step if inspection is not None else None,
            weight=confidence(0.85, 0.3 if low < 0 and high > 1 else 0.0),
            notes=[
                ("scores from", scores.site.place if scores.site is not None else None),
                ("multiplied at", call.site.place if call.site is not None else None),
            ],
            fix="apply scores.sigmoid(), or softmax over the classes, first",
            standing=WIRED,
        )
        return


def _scores(calls: StepCalls, call: CallFacts) -> CallFacts | None:
    """What a network gives, with nothing but changes of shape in between."""
    learns = next((argument for argument in call.arguments if argument.requires_grad), None)
    made = calls.origin(learns) if learns is not None else None
    if not isinstance(made, CallFacts):
        return None
    behind, _ = calls.behind(made)
    return made if any(calls.calls[index].name in LAYERS for index in behind) else None


def _is_overlap(calls: StepCalls, product: CallFacts, scores: CallFacts) -> bool:
    """It is divided by something that sums the scores themselves."""
    for later in calls.calls[product.index + 1 :]:
        if later.name != "div" or len(later.arguments) < 2:
            continue
        above, below = (calls.maker(argument) for argument in later.arguments[:2])
        if above is None or below is None or not later.arguments[1].requires_grad:
            continue
        overlaps, _ = calls.behind(above, stop=LAYERS)
        beneath, _ = calls.behind(below, stop=LAYERS)
        sums = (calls.calls[index] for index in beneath if calls.calls[index].name == "sum")
        of_scores = (calls.origin(one.arguments[0]) for one in sums if one.arguments)
        if product.index in overlaps and any(made is scores for made in of_scores):
            return True
    return False
