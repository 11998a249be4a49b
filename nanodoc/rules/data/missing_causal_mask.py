"""## What it checks
A step whose labels are its input tokens one position later: the gradient of the scores at two
positions with respect to the embedded tokens. If the scores depend on a later token, the model
sees the answer. The first call whose result at one position depends on a later token is reported:
an attention without a mask, or a view that mixes positions before it.

## Why it matters
The training loss falls to almost zero, but the model generates noise: the answer is not there at
generation time.

## Example
    scores = scores.masked_fill(mask == 0, -1e-9)   # should be -inf

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
from nanodoc.facts.calls import CallFacts, StepCalls, is_attention
from nanodoc.facts.evidence import Evidence
from nanodoc.facts.inspection import MixingFacts
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import (
    Standing,
    at_call,
    calls_into_the_loss,
    learning_claim,
)
from nanodoc.vocabulary.calls import (
    MASK_MAKERS,
    MATRIX_PRODUCTS,
    RECURRENT,
    RESHAPING,
    SCORE_MASKING,
)


@rule(
    "ND118",
    "missing-causal-mask",
    "critical",
    "a next-token model that sees the next token",
    needs=("inspection",),
)
def check(rule: Rule, evidence: Evidence) -> Iterable[Claim]:
    inspection = evidence.inspection
    seen = inspection.sequence if inspection is not None else None
    if inspection is None or seen is None or seen.distance != 1 or seen.reads_later <= 0:
        return
    if any(call.notes.mask is not None for call in inspection.calls.calls):
        return  # ND116: it is there, upside down
    call, measured = _leak(evidence, seen.mixing)
    mixing = call is not None and not _hides(call)
    culprit = at_call(call, evidence) if call is not None else None
    place = culprit.location if culprit is not None else seen.at
    calls = inspection.calls
    made = _made(calls, call) if call is not None else None
    at = made.site if made is not None else None if mixing or measured else inspection.reader_at
    if culprit is not None and at is not None:
        culprit = replace(culprit, location=at)
    yield learning_claim(
        rule,
        location_key(place) or ("mask", "causal"),
        standing=Standing(stage=Stage.WIRING),
        title="the model sees the token that it should predict",
        explanation="The labels are the input tokens one position later, and the scores of a "
        f"position depend on a later token: {_why(call)}",
        culprit=culprit or Culprit(kind="op", location=place),
        step=inspection.step,
        weight=confidence(
            0.9 if measured or not mixing else 0.6, 0.3 if seen.reads_later > 1 else 0.0
        ),
        notes=[
            ("examined positions that depend on a later token", f"{seen.reads_later} of 2"),
            ("labels compared", seen.labels),
        ],
        fix=_fix(call),
    )


def _hides(call: CallFacts) -> bool:
    """The call is to hide later positions: attention, its mask, or a recurrent layer."""
    return call.name in (*RECURRENT, *SCORE_MASKING) or is_attention(call)


def _why(call: CallFacts | None) -> str:
    if call is not None and call.name in RECURRENT:
        return "a recurrent layer also runs backwards."
    if call is None or _hides(call):
        return "no mask hides the later positions, or not all of them."
    if call.name in RESHAPING and call.arguments:
        return (
            f"this {call.name} turns {call.arguments[0].shape} into {call.shape}, which moves "
            "values to a different position or sequence."
        )
    return f"{call.name} is the first call whose result at one position depends on later ones."


def _fix(call: CallFacts | None) -> str:
    if call is None or _hides(call):
        return (
            "hide the later positions: is_causal=True, or -inf (not a small number) where the key "
            "comes after the query"
        )
    if call.name in RESHAPING:
        return f"move dimensions with transpose or permute; {call.name} only regroups the values"
    return f"keep {call.name} from combining a position with later ones"


def _leak(evidence: Evidence, mixing: MixingFacts | None) -> tuple[CallFacts | None, bool]:
    """(the call in which later positions are read, whether that was measured)"""
    found = [*calls_into_the_loss(evidence)]
    if mixing is not None:
        for calls, call in found:
            if call.name != mixing.name or call.site != mixing.at:
                continue
            hiding = _attention(calls, [one for _, one in found], call, mixing)
            if hiding is None or not _is_causal(hiding):
                return hiding or call, True
            break
    for calls, call in found:
        if call.name in RECURRENT:
            return call, False
        if is_attention(call):
            if not _is_causal(call):
                return _masked(calls, call), False
            # nothing can leak in it: what it is given was mixed before
            paths = (calls.path(argument) for argument in call.arguments)
            moved = next((one for path in paths for one in path if one.name in RESHAPING), None)
            if moved is not None:
                return moved, False
    return None, False


def _attention(
    calls: StepCalls, found: list[CallFacts], call: CallFacts, mixing: MixingFacts
) -> CallFacts | None:
    """The attention that a call is, or ends, or that alone can have mixed what it is given; None
    where it is something else."""
    if is_attention(call):
        return _masked(calls, call)
    if call.name in RECURRENT:
        return call
    made, _ = calls.behind(call)
    inside = [one for one in found if one.index in made and is_attention(one)]
    if call.called_from is not None:  # the user's line calls all of a library's module
        same = [one for one in inside if one.site == call.site]
        if same:
            return _masked(calls, same[-1])
    elif call.name in MATRIX_PRODUCTS and inside:
        return _masked(calls, inside[-1])
    unseen = [one for one in inside if not _is_causal(one) and not _is_clean(calls, one, mixing)]
    return _masked(calls, unseen[0]) if unseen else None


def _is_clean(calls: StepCalls, attention: CallFacts, mixing: MixingFacts) -> bool:
    """What an attention gives was seen not to depend on later positions."""
    if attention.name != "softmax":
        return attention.site in mixing.clean
    for call in calls.calls[attention.index :]:
        if call.name in MATRIX_PRODUCTS and any(
            isinstance(origin := calls.origin(argument), CallFacts)
            and origin.index == attention.index
            for argument in call.arguments
        ):
            return call.site in mixing.clean
    return False


def _masked(calls: StepCalls, call: CallFacts) -> CallFacts:
    """What was to mask the scores of an attention by hand; else the attention."""
    return (_mask(calls, call) if call.name == "softmax" else None) or call


def _is_causal(call: CallFacts) -> bool:
    return call.name == "scaled_dot_product_attention" and call.options.get("is_causal") is True


def _made(calls: StepCalls, attention: CallFacts) -> CallFacts | None:
    """The user's own call that makes the mask which the attention is given, of one value for each
    pair of positions; None where it is given none."""
    for argument in attention.arguments[3:]:
        places = argument.shape[-2:]
        if argument.requires_grad or len(places) < 2 or places[0] != places[1]:
            continue
        behind, _ = calls.behind(argument)
        own = [calls.calls[index] for index in sorted(behind) if not calls.calls[index].called_from]
        made = [call for call in own if call.name in MASK_MAKERS and call.location is not None]
        if made:
            return made[-1]
    return None


def _mask(calls: StepCalls, softmax: CallFacts) -> CallFacts | None:
    """What was to mask the scores."""
    argument = softmax.arguments[0]
    for _ in range(4):
        made = calls.maker(argument)
        if made is None or made.name in SCORE_MASKING:
            return made
        if not made.arguments or made.shape != softmax.shape:
            return None
        argument = made.arguments[0]
    return None
