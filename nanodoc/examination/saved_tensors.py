"""Which op saved a tensor for its derivative, and whether someone wrote to it before the derivative
was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import DisableTorchFunction, sequence_number
from nanodoc.trace.tracer import Tracer


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A saved tensor whose version moved on. `sequence` is that of the node that saved it, `count`
    how many ops had run by then, `writers` the ops that wrote to its memory."""

    sequence: int
    count: int
    writers: tuple[int, ...]
    shape: tuple[int, ...]
    leaf: str | None


class OverwrittenError(RuntimeError):
    """Ends a replay at the first overwritten tensor, where autograd would have raised."""


class SavedTensorWatch:
    """Makes the check autograd makes when it unpacks a saved tensor, and remembers both ends."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self.found: Overwritten | None = None

    def __enter__(self) -> SavedTensorWatch:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._hooks.__exit__(*exc)

    @ours
    def _pack(self, tensor: torch.Tensor) -> Any:
        with DisableTorchFunction():
            sequence = sequence_number() - 1
            return (
                tensor,
                0 if tensor.is_inference() else tensor._version,
                sequence,
                self._tracer.count,
            )

    @ours
    def _unpack(self, packed: Any) -> torch.Tensor:
        tensor, version, sequence, count = packed
        with DisableTorchFunction():
            if not tensor.is_inference() and tensor._version != version:
                writers, leaf = self._tracer.writers_of(tensor)
                self.found = Overwritten(sequence, count, writers, tuple(tensor.shape), leaf)
                raise OverwrittenError("a saved tensor was overwritten")
        return tensor  # type: ignore[no-any-return]
