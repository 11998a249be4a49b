"""## What it checks
A loss made from an overlap (Dice, IoU): the summed product of a network's scores and a mask of
zeros and ones, divided by sums of both. From the quotient to the loss, through means, sums and
weights, its sign is never flipped: no `1 - dice`, no minus.

## Why it matters
Training then makes the overlap as small as possible. The loss falls as usual.

## Example
    dice = 2 * (p * mask).sum() / (p.sum() + mask.sum())
    return dice

## Fix
    return 1 - dice

## See also
ND655 raw-overlap, ND641 maximised-loss
"""

from __future__ import annotations

from collections.abc import Iterable

from nanodoc.diagnosis.claim import Claim, confidence
from nanodoc.diagnosis.rule import Rule, rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.plateau import SHORTEST, late_loss
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import WIRED, at_call, calls_into_the_loss, learning_claim
from nanodoc.vocabulary.calls import CLAMPS, LAYERS, REDUCTIONS

_KEEPING = (*REDUCTIONS, *CLAMPS, "stack", "cat", "squeeze")
_BEYOND = 0.05  # of 0 and of 1: a share lies between them


@rule(
    "ND659",
    "minimised-overlap",
    "critical",
    "a loss that falls with the overlap",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    for calls, call in calls_into_the_loss(evidence):
        if call.name != "div" or not call.requires_grad or not _is_overlap(calls, call):
            continue
        if not _reaches_unturned(calls, call):
            continue
        yield learning_claim(
            rule,
            location_key(call.site) or ("overlap", call.index),
            title="the loss is the overlap itself, and is minimised",
            explanation="This line computes the overlap of the scores with the mask, and nothing "
            "flips its sign on the way to the loss: the smaller the overlap, the lower the "
            "loss.",
            culprit=at_call(call, evidence),
            step=len(evidence.losses) - 1,
            weight=confidence(0.7, _fell(evidence)),
            notes=[("loss at the start", evidence.losses[0] if evidence.losses else None)],
            fix="1 - the overlap",
            standing=WIRED,
        )
        return


def _fell(evidence: Evidence) -> float:
    """The share of the overlap that the run has lost."""
    losses = evidence.losses
    if len(losses) < SHORTEST or losses[0] <= 0:
        return 0.0
    return min(max(1 - late_loss(losses) / losses[0], 0.0), 0.9)


def _is_overlap(calls: StepCalls, quotient: CallFacts) -> bool:
    """A sum of scores times mask, over sums that both go into."""
    if len(quotient.arguments) < 2:
        return False
    above, below = (calls.maker(argument) for argument in quotient.arguments[:2])
    if above is None or below is None or not quotient.arguments[1].requires_grad:
        return False
    over, _ = calls.behind(above, stop=LAYERS)
    under, _ = calls.behind(below, stop=LAYERS)
    product = next((p for i in over if _is_masked(calls, p := calls.calls[i])), None)
    summed = any(calls.calls[i].name == "sum" for i in over)
    # the rest of a mask, 1 - p and 1 - mask, may be looked at as well (Tversky)
    others = {calls.calls[i].name for i in over} & {"pow", "square", "abs", "log", "exp"}
    return product is not None and summed and not others and _shares(calls, product, under)


def _is_masked(calls: StepCalls, call: CallFacts) -> bool:
    """Scores between 0 and 1 times a mask of zeros and ones, which is not what a mask leaves."""
    masked = call.notes.product.masked
    if masked is None:
        return False
    masks = [calls.maker(argument) for argument in call.arguments if not argument.requires_grad]
    rest = any(mask is not None and mask.notes.number.taken_from is not None for mask in masks)
    return masked.low >= -_BEYOND and masked.high <= 1 + _BEYOND and not rest


def _shares(calls: StepCalls, product: CallFacts, under: set[int]) -> bool:
    """What is multiplied with the mask is summed below the line, too."""
    scores = next((a for a in product.arguments if a.requires_grad), None)
    made = calls.maker(scores) if scores is not None else None
    return made is not None and made.index in under


def _reaches_unturned(calls: StepCalls, call: CallFacts) -> bool:
    """Every way from the call to the loss keeps its sign."""
    waiting, seen = [call.index], set[int]()
    reached = False
    while waiting:
        index = waiting.pop()
        # what the loss does where this number grows
        slope = calls.calls[index].notes.slope
        if slope is not None:
            if slope <= 0:
                return False
            reached = True
            continue
        for later in calls.calls[index + 1 :]:
            takes = [n for n, argument in enumerate(later.arguments) if argument.made_by == index]
            if not takes or later.index in seen:
                continue
            seen.add(later.index)
            if not _keeps_sign(later, takes):
                return False
            waiting.append(later.index)
    return reached


def _keeps_sign(later: CallFacts, takes: list[int]) -> bool:
    """Of one number for each sample; a factor may turn it."""
    if later.same_values or later.name in (*_KEEPING, "add"):
        return True
    # x - something; 1 - x and something - x turn it
    return later.name == "sub" and takes == [0] and later.notes.number.taken_from is None
