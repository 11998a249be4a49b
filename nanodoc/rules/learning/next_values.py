"""What the rules about targets of Q-learning and of critics share: a reward plus what a network
says of the next state."""

from __future__ import annotations

from collections.abc import Iterator

from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.vocabulary.calls import LAYERS, REGRESSION


def next_values(calls: StepCalls) -> Iterator[tuple[CallFacts, ArgumentFacts]]:
    """(the sum, its term that a network says) of the targets of regressions."""
    for total, value, _ in _bootstrapped(calls):
        yield total, value


def predictions(calls: StepCalls) -> Iterator[ArgumentFacts]:
    """What each of these regressions compares with its target."""
    for _, _, predicted in _bootstrapped(calls):
        yield predicted


def _bootstrapped(
    calls: StepCalls,
) -> Iterator[tuple[CallFacts, ArgumentFacts, ArgumentFacts]]:
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
            yield total, values[0], predicted


def is_of_a_network(calls: StepCalls, argument: ArgumentFacts) -> bool:
    made = calls.maker(argument)
    if made is None:
        return False
    return any(calls.calls[index].name in LAYERS for index in calls.behind(made, stop=LAYERS)[0])
