"""Targets of Q-learning and of critics: a reward plus what a network says of the next state. Like
`evidence`: without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.vocabulary.calls import LAYERS, REGRESSION


@dataclass(frozen=True, slots=True)
class Bootstrapped:
    """A regression whose target a network has a part in."""

    loss: CallFacts
    total: CallFacts
    """The sum that the target is."""
    value: ArgumentFacts
    """Its term that a network says."""
    predicted: ArgumentFacts


def bootstrapped(calls: StepCalls) -> Iterator[Bootstrapped]:
    """Those of one step."""
    reaching = calls.reaching_the_loss()
    for loss in calls.calls:
        if loss.name not in REGRESSION or loss.index not in reaching:
            continue
        target = next((a for a in loss.arguments[:2] if not a.requires_grad), None)
        total = calls.origin(target) if target is not None else None
        if not isinstance(total, CallFacts) or total.name != "add":
            continue
        values = [a for a in total.arguments if is_of_a_network(calls, a)]
        predicted = next((a for a in loss.arguments[:2] if a.requires_grad), None)
        if len(total.arguments) == 2 and len(values) == 1 and predicted is not None:
            yield Bootstrapped(loss, total, values[0], predicted)


def reads_next_states(calls: StepCalls) -> Bootstrapped | None:
    """The first of them for which it is known what the networks are given."""
    for found in bootstrapped(calls):
        if readers(calls, found.value) and readers(calls, found.predicted):
            return found
    return None


def readers(calls: StepCalls, argument: ArgumentFacts) -> list[CallFacts]:
    """The first layers behind something: what they are given, no layer has made."""
    behind = [calls.calls[index] for index in sorted(calls.behind(argument)[0])]
    layers = [made for made in behind if made.name in LAYERS and made.arguments]
    return [made for made in layers if not _is_made_by_layers(calls, made.arguments[0])]


def joined(calls: StepCalls, argument: ArgumentFacts) -> list[tuple[CallFacts, int]]:
    """(the call, the place among its arguments) of what is joined there with what a layer has made,
    on its way to another layer: the states that a critic is given beside an actor's actions."""
    behind = calls.behind(argument)[0]
    layers = [calls.calls[index] for index in behind if calls.calls[index].name in LAYERS]
    before = set[int]().union(*(calls.behind(layer)[0] - {layer.index} for layer in layers))
    found = []
    for made in (calls.calls[index] for index in sorted(before)):
        of_layers = [_is_made_by_layers(calls, a) for a in made.arguments]
        if made.name == "cat" and any(of_layers):
            found += [(made, at) for at, is_of_layer in enumerate(of_layers) if not is_of_layer]
    return found


def _is_made_by_layers(calls: StepCalls, argument: ArgumentFacts) -> bool:
    return any(calls.calls[index].name in LAYERS for index in calls.behind(argument)[0])


def is_of_a_network(calls: StepCalls, argument: ArgumentFacts) -> bool:
    """A layer has a part in it."""
    made = calls.maker(argument)
    if made is None:
        return False
    return any(calls.calls[index].name in LAYERS for index in calls.behind(made, stop=LAYERS)[0])
