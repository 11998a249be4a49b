"""Gradients before an optimizer steps: behind the step they may be cleared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import torch

from nanodoc.instrument.torch_private import DisableTorchDispatch, DisableTorchFunction
from nanodoc.tensors.plain import local_of
from nanodoc.tensors.sums import dense_values

_LOOKS = 4  # optimizer steps before which they are looked at


class StepGradients:
    """The norms of gradients as they were before one of the first optimizer steps."""

    def __init__(self) -> None:
        self._norms: dict[str, float | None] = {}
        self._looked = 0
        self.over = False
        """No further step is looked at."""

    def note(self, named: Callable[[], Iterable[tuple[str, torch.nn.Parameter]]]) -> None:
        """An optimizer is about to step. Asks for the parameters only where it looks."""
        if self.over:
            return
        self._looked += 1
        self.over = self._looked == _LOOKS
        # neither a mode of the user's nor a collective may come of it, and no error
        with (
            contextlib.suppress(Exception),
            DisableTorchFunction(),
            DisableTorchDispatch(),
        ):
            self._norms |= {name: norm_of(parameter.grad) for name, parameter in named()}

    def norm(self, name: str) -> float | None:
        """None where none was seen."""
        return self._norms.get(name)


def norm_of(gradient: torch.Tensor | None) -> float | None:
    """None without a gradient."""
    if gradient is None:
        return None
    return float(torch.linalg.vector_norm(dense_values(local_of(gradient).detach())))
