"""What the gradients of an optimizer are made of: which backwards added to them, and whether of
scaled losses."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from nanodoc.trace.spans import Place

Versions = list[tuple[int, int]]


class Backward(NamedTuple):
    """One backward that added to some gradients."""

    scaled: bool | None
    """None where it may have been scaled by hand."""
    scaler: int
    """Identity of the scaler, 0 without one."""
    updates: int
    """How often that scaler had been updated by then."""
    place: Place | None


class Gradients:
    """What the gradients of one optimizer are made of since they were cleared; optimizers that
    share parameters (a wrapper and what it wraps) share this too."""

    def __init__(self, optimizer: Any) -> None:
        try:
            self._optimizer: Any = weakref.ref(optimizer)
        except TypeError:  # a class with slots
            self._optimizer = lambda: optimizer
        self.backwards: list[Backward] = []
        self.unscaled_at: Place | None = None
        self.unscaled = False
        self.used = False
        self.left: Versions = []
        """The gradients' versions when a backward, or torch's own clipping, was done with them."""

    @property
    def scaled(self) -> bool:
        """They are multiplied by the scale as they stand, for all that was seen."""
        return not self.unscaled and any(backward.scaled for backward in self.backwards)

    @property
    def scaled_at(self) -> Place | None:
        """The first backward of a scaled loss."""
        return next((backward.place for backward in self.backwards if backward.scaled), None)

    @property
    def rewritten(self) -> bool:
        """Somebody else has written to them since: they may have been unscaled by hand."""
        return self.versions() != self.left

    def parameters(self) -> Iterator[torch.Tensor]:
        """The optimizer's parameters, none if it is gone or is no torch optimizer."""
        for group in getattr(self._optimizer(), "param_groups", ()):
            yield from group["params"]

    def versions(self) -> Versions:
        """Differs as soon as anything writes to a gradient or replaces it."""
        return [
            (id(p.grad), p.grad._version) if p.grad is not None else (0, 0)
            for p in self.parameters()
        ]

    def are_gone(self) -> bool:
        """No parameter has a gradient, or every one is zero: somebody has cleared them."""
        grads = [p.grad for p in self.parameters() if p.grad is not None]
        return not any(
            bool((grad._values() if grad.layout != torch.strided else grad).any()) for grad in grads
        )

    def clear(self) -> None:
        self.backwards, self.unscaled, self.unscaled_at, self.used = [], False, None, False
