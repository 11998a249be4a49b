"""A code that is looked up by its distance and passed on to a network without a gradient back to
its encoder."""

from __future__ import annotations

from collections.abc import Iterator

from nanodoc.diagnosis.claim import Claim, Specificity, Stage, confidence
from nanodoc.diagnosis.rule import Rule
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.evidence import Evidence
from nanodoc.rules.base import location_key
from nanodoc.rules.learning.claims import Standing, at_call, learning_claim
from nanodoc.vocabulary.calls import CHOICES, DISTANCES, RECURRENT

_NEAREST = ("argmin", "min")  # of the others, the negative distances
# no product: one may look up a code
_CONVOLUTIONS = tuple(f"conv{way}{n}d" for way in ("", "_transpose") for n in (1, 2, 3))
_LAYERS = ("linear", *_CONVOLUTIONS, *RECURRENT)


def quantised_claims(rule: Rule, evidence: Evidence) -> Iterator[Claim]:
    """Only of a table that the choice itself was measured against: a decision by scores looks up
    something else. Not where the code meets what it was chosen for, differentiably, before the next
    layer."""
    calls = evidence.inspection.calls if evidence.inspection is not None else None
    for choice in calls.calls if calls is not None else ():
        assert calls is not None
        if choice.name not in CHOICES or not choice.arguments:
            continue
        encoder = _encoder(calls, choice)
        layer = _fed(calls, choice) if encoder is not None else None
        if encoder is None or layer is None or layer.index in _differentiable(calls, encoder):
            continue
        code = _code(calls, layer)
        if code is None or code.site is None or not _same_table(calls, encoder, choice, code):
            continue
        # a detach() of all of it stands where one of a part should
        at = next((c for c in _alone(calls, layer) if c.name == "detach" and c.site), code)
        yield learning_claim(
            rule,
            location_key(at.site) or ("op", at.index),
            standing=Standing(stage=Stage.WIRING, specificity=Specificity.EXACT),
            severity="warning",
            weight=confidence(0.8, 0.3 if choice.name in _NEAREST else 0.1),
            title="the nearest code passes no gradient back to the encoder",
            explanation=f"The code nearest to the output of {encoder.module or encoder.name} is "
            "chosen, and a choice has no derivative. The gradient from "
            f"{layer.module or layer.name} and the layers after it does not reach "
            f"{encoder.module or encoder.name}.",
            culprit=at_call(at, evidence),
            step=evidence.inspection.step if evidence.inspection is not None else None,
            notes=[
                ("chosen at", choice.site.place if choice.site is not None else None),
                ("passed on to", layer.module or layer.name),
            ],
            fix="straight-through: z + (code - z).detach()",
        )
        return


def _encoder(calls: StepCalls, choice: CallFacts) -> CallFacts | None:
    """The last layer with gradient that a choice by distance depends on."""
    behind, _ = calls.behind(choice)
    found = [calls.calls[index] for index in sorted(behind)]
    names = {call.name for call in found}
    negative = any(call.name == "neg" for call in found)
    if choice.name not in _NEAREST and not (negative or names & set(DISTANCES)):
        return None
    layers = [call for call in found if call.name in _LAYERS and call.requires_grad]
    return layers[-1] if layers and choice is not layers[-1] else None


def _same_table(calls: StepCalls, encoder: CallFacts, choice: CallFacts, code: CallFacts) -> bool:
    """What the code was taken from is what the choice compared with the encoder's output."""
    compared = _leaves(calls, choice) - _leaves(calls, encoder)
    return bool(compared & _leaves(calls, code, stop=CHOICES))


def _leaves(calls: StepCalls, call: CallFacts, stop: tuple[str, ...] = ()) -> set[str]:
    return {argument.leaf for argument in calls.behind(call, stop)[1] if argument.leaf}


def _fed(calls: StepCalls, choice: CallFacts) -> CallFacts | None:
    """The first layer that the chosen code goes into on its way to the loss."""
    reaching, follows = calls.reaching_the_loss(), {choice.index}
    for call in calls.calls[choice.index + 1 :]:
        taken = [a for a in call.arguments if a.made_by in follows]
        if not taken:
            continue
        # it learns, and what made it does not: a function of the user's own stands between, which
        # may pass gradient on as it likes
        if any(a.requires_grad and not calls.calls[a.made_by or 0].requires_grad for a in taken):
            return None
        if call.name in _LAYERS:
            if call.index in reaching and call.arguments[0].made_by in follows:
                return call
            continue
        follows.add(call.index)
    return None


def _code(calls: StepCalls, layer: CallFacts) -> CallFacts | None:
    """What gives the code that the layer takes, whatever is done with it alone, such as an
    upsampling, on the way there."""
    return next(iter(reversed(_alone(calls, layer))), None)


def _alone(calls: StepCalls, layer: CallFacts) -> list[CallFacts]:
    """The calls that made what the layer takes of one thing alone, the latest first, and what gave
    that thing."""
    found = []
    made = calls.maker(layer.arguments[0])
    while made is not None:
        found.append(made)
        alone = made.arguments and (len(made.arguments) == 1 or made.name.endswith("_as"))
        made = calls.maker(made.arguments[0]) if alone else None
    return found


def _differentiable(calls: StepCalls, start: CallFacts) -> set[int]:
    """The calls that a gradient could flow back from to `start`."""
    found = {start.index}
    for call in calls.calls[start.index + 1 :]:
        # of what gives a shape, no value is read
        read = call.arguments[:1] if call.name.endswith("_as") else call.arguments
        learns = any(a.requires_grad and a.made_by in found for a in read)
        if learns and call.requires_grad:
            found.add(call.index)
    return found
