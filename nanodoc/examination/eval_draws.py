"""Values that are dropped at random in eval mode, by whichever function."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import TorchDispatchMode
from nanodoc.trace.spans import Place, calling_places

look_through(__file__)

_CHANCES = {"aten::native_dropout": "p", "aten::bernoulli_": "p"}
"""Ops that drop with one chance for all values, and the argument that holds it."""
_OF_ATTENTION = "dropout_p"  # of the fused ops of attention


class EvalDraws(TorchDispatchMode):
    """Around a step in eval mode: `places` are the user's lines that drop values. What a network
    draws with chances that it has computed, or adds as noise, may be meant."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = []

    @ours
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and _drops(func, args, kwargs or {}):
            own, caller = calling_places(1)
            place = caller or own
            if place is not None:
                self.places.append(place)
        return func(*args, **(kwargs or {}))


def _drops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    schema = func._schema
    wanted = _CHANCES.get(schema.name, _OF_ATTENTION)
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | kwargs
    chance = given.get(wanted)
    return isinstance(chance, float) and 0 < chance < 1 and given.get("train") is not False
