"""The latent of a variational autoencoder, and what its KL divergence from a standard normal is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanodoc.facts.calls import ArgumentFacts, CallFacts, StepCalls
from nanodoc.vocabulary.calls import DRAWS, LAYERS, REDUCTIONS

_ONE_HALF = 0.5
"""In front of the sum over 1 + log σ² − μ² − σ²."""


@dataclass(frozen=True, slots=True)
class Latent:
    """`mu + std * noise`"""

    index: int
    mean: int
    """Position of the call that made mu."""
    spread: int
    """Of the call whose exp or softplus std is, or that made std."""


def latent_of(calls: StepCalls) -> Latent | None:
    """The first that is drawn as `mu + std * noise`."""
    for call in calls.calls:
        if call.name != "add" or len(call.arguments) != 2 or not call.requires_grad:
            continue
        for mean, noise in (call.arguments, call.arguments[::-1]):
            product, made = calls.maker(noise), calls.maker(mean)
            if product is None or made is None or product.name != "mul":
                continue
            spread = next((a for a in product.arguments if a.requires_grad), None)
            drawn = any(_is_drawn(calls, argument) for argument in product.arguments)
            origin = calls.origin(spread, elementwise=True) if spread is not None else None
            if drawn and mean.requires_grad and isinstance(origin, CallFacts):
                return Latent(call.index, made.index, origin.index)
    return None


def _is_drawn(calls: StepCalls, argument: ArgumentFacts) -> bool:
    made = calls.origin(argument)
    return isinstance(made, CallFacts) and made.name.startswith(DRAWS) and not made.requires_grad


def nats_of(
    calls: StepCalls, latent: Latent, term: CallFacts, reduced: CallFacts
) -> tuple[float, float] | None:
    """(the weight of a sample's KL divergence in the loss, the divergence in nats) of a term that
    is the KL divergence of the latent, summed over its dimensions."""
    if reduced.name not in REDUCTIONS or not reduced.arguments[0].shape:
        return None
    behind, _ = calls.behind(reduced, stop=LAYERS)
    if not {latent.mean, latent.spread} <= behind or latent.index in behind:
        return None
    total, weighted = value_of(reduced), value_of(term)
    if total is None or weighted is None or not total:
        return None
    factor, samples = abs(weighted / total), reduced.arguments[0].shape[0]
    if reduced.name == "sum":
        half = _ONE_HALF if len(reduced.arguments[0].shape) > 1 else 1.0
        return factor / half, half * abs(total) / samples
    if len(reduced.arguments[0].shape) > 1 or not any(
        calls.calls[index].name == "sum" for index in behind
    ):
        return None  # a mean over the latent's dimensions, too
    return factor / samples, abs(total)


def value_of(call: CallFacts) -> float | None:
    """Of a call that gave a single number, where it is finite."""
    value = call.notes.value
    return value if value is not None and math.isfinite(value) else None
