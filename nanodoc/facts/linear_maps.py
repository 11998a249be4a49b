"""Two linear layers, or convolutions, with no nonlinear function between them: whatever their
weights, a linear map computes the same. Read from the calls of a step, without torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.vocabulary.calls import CASTS, COPIES, DROPOUTS, LAYERS, RESHAPING

_BETWEEN = (*CASTS, *COPIES, *DROPOUTS, *RESHAPING, "batch_norm")
_OPERANDS = 2  # input and weight


@dataclass(frozen=True, slots=True)
class JoinedLayers:
    """A linear layer or a convolution whose outputs go into another one, and nowhere else."""

    weight: str
    """The parameter of the first one, (hidden, inputs, ...),"""
    next_weight: str
    """and of the second one, (outputs, hidden, ...)."""
    sizes: tuple[int, int, int]
    """Inputs, hidden, outputs."""
    layer: CallFacts
    last: CallFacts
    """What gives the second one its inputs: the first one, or what stands between the two."""

    @property
    def saves_nothing(self) -> bool:
        """The hidden size is no bottleneck: the two are no factors of a matrix of low rank (LoRA,
        the code of an autoencoder)."""
        inputs, hidden, outputs = self.sizes
        return hidden >= min(inputs, outputs)


def joined_layers(calls: StepCalls) -> Iterator[JoinedLayers]:
    """Those of the step's layers with which this holds in each call."""
    reaching = calls.reaching_the_loss()
    readers: dict[int, list[CallFacts]] = defaultdict(list)
    for call in calls.calls:
        for made_by in {a.made_by for a in call.arguments if call.index in reaching} - {None}:
            assert made_by is not None
            readers[made_by].append(call)
    followed: dict[str, list[JoinedLayers | None]] = defaultdict(list)
    for call in calls.calls:
        if call.index in reaching and (weight := _weight(call)) is not None:
            joined = _joined(call, weight, readers)
            probes = joined is not None and _of_frozen_layers(calls, call)
            followed[weight].append(None if probes else joined)
    for each in followed.values():
        first = each[0]
        if first is not None and len({one and one.next_weight for one in each}) == 1:
            yield first


def _weight(call: CallFacts) -> str | None:
    """The name of the weight that a layer learns which mixes all of its inputs."""
    if call.name not in ("linear", "conv1d", "conv2d", "conv3d") or len(call.arguments) < _OPERANDS:
        return None
    given, weight = call.arguments[:_OPERANDS]
    at = _channels_at(call)
    mixes = given.shape[at:][:1] == weight.shape[1:2]  # a convolution in groups does not
    return weight.parameter if weight.requires_grad and mixes else None


def _channels_at(layer: CallFacts) -> int:
    """The dimension of what such a layer is given that it mixes."""
    return -1 if layer.name == "linear" else 1


def _of_frozen_layers(calls: StepCalls, call: CallFacts) -> bool:
    """It is given what layers have made that do not learn: a probe of these may be linear."""
    given = call.arguments[0]
    if given.requires_grad:
        return False
    made_of, _ = calls.behind(given)
    return any(calls.calls[i].name in LAYERS for i in made_of)


def _joined(
    layer: CallFacts, weight: str, readers: dict[int, list[CallFacts]]
) -> JoinedLayers | None:
    made = layer
    while len(reading := readers[made.index]) == 1:
        (reader,) = reading
        if (next_weight := _weight(reader)) is not None:
            alike = reader.name == layer.name and reader.arguments[0].made_by == made.index
            if not alike or next_weight == weight:
                return None
            hidden, inputs, *_ = layer.arguments[1].shape
            sizes = (inputs, hidden, reader.arguments[1].shape[0])
            if made is layer and len(layer.arguments) == _OPERANDS:
                return None  # without a bias it is a projection, or a linear operator, on purpose
            return JoinedLayers(weight, next_weight, sizes, layer, made)
        at = _channels_at(layer)
        if reader.name not in _BETWEEN or reader.shape[at:] != made.shape[at:]:
            return None
        made = reader
    return None
