"""An op on sharded tensors may exchange values with other ranks: a norm of parts adds up those of
all ranks."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.instrument.originals import call, ours
from nanodoc.instrument.torch_private import TorchDispatchMode
from nanodoc.tensors.plain import is_sharded
from nanodoc.trace.ops import describe_op, is_collective, tensors_in

_OF_RESULTS = ("::wait_tensor", "::_wrap_tensor_autograd")
"""They are given what has arrived, or is still on its way."""


class Exchanges(TorchDispatchMode):
    """Open while one such op runs: sees the ops on this rank's parts that it consists of."""

    def __init__(self) -> None:
        super().__init__()
        self._there = False
        self._sent_sick = False

    @property
    def received_only(self) -> bool:
        """There was an exchange, and all that this rank gave to it was finite."""
        return self._there and not self._sent_sick

    @ours
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tensors_in((*args, *(kwargs or {}).values()))
        if any(map(is_sharded, given)):
            return NotImplemented  # DTensor's own dispatch comes next, and runs its ops in here
        if is_collective(describe_op(func)) and not func.name().endswith(_OF_RESULTS):
            self._there = True
            self._sent_sick |= not all(map(_is_finite, given))
        return call(func, *args, **(kwargs or {}))


def _is_finite(tensor: torch.Tensor) -> bool:
    """False also where that can't be told: 8-bit floats have few kernels."""
    try:
        return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
    except (RuntimeError, NotImplementedError, TypeError):
        return False
