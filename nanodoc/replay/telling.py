"""Backward passes, optimizers and GradScalers tell the observer that is open.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol

import torch

from nanodoc.heartbeat import trail
from nanodoc.instrument.taps import BACKWARD, BEFORE_STEP, SCALER_STEP, listening


class Listening(Protocol):
    """What an observer is told by."""

    @property
    def thread(self) -> int | None:
        """The only one whose backward passes count, if any."""

    @property
    def late_steps(self) -> int:
        """Optimizer steps that it has seen, with gradients of the step itself."""

    @property
    def before_step(self) -> Callable[[torch.optim.Optimizer, Any, Any], Any] | None:
        """Told of every optimizer that is about to step, with the arguments of its step."""

    def before_scaler_step(self) -> None:
        """Told of a GradScaler that is about to."""

    def before_backward(self, loss: torch.Tensor) -> None:
        """Told of every tensor that a backward pass begins at."""


open_observers: list[Listening] = []
"""Those that observe now, the innermost last."""
_installs = 0


def are_installed() -> bool:
    """Inside of `installed`."""
    return bool(_installs)


@contextmanager
def installed() -> Iterator[None]:
    """`backward` and a GradScaler's `step` tell the observer that is open. Around a whole run it
    saves putting the wrappers in place for each step: every change of a class costs Python its
    caches."""
    global _installs
    if _installs:
        yield
        return
    _installs += 1
    try:
        # the hook for the whole run, too: another thread of the training's may step while it would
        # be added
        with listening(
            (BACKWARD, _Telling().backward),
            (SCALER_STEP, _telling_step),
            (BEFORE_STEP, _before_any_step),
        ):
            yield
    finally:
        _installs -= 1


def _before_any_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    before = open_observers[-1].before_step if open_observers else None
    return before(optimizer, args, kwargs) if before is not None else None


def unused_loss(loss: torch.Tensor) -> None:
    """A loss that the step leaves without having differentiated it."""
    if open_observers and not open_observers[-1].late_steps:
        open_observers[-1].before_backward(loss)


class _Telling:
    """Wrappers of which the outermost tells: torch's own call each other, and under a function mode
    one calls itself."""

    def __init__(self) -> None:
        self._inside = False

    def backward(self, original: Callable[..., Any]) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            # another thread of the training's differentiates something of its own
            if (
                not open_observers
                or open_observers[-1].thread not in (None, get_ident())
                or self._inside
            ):
                return original(tensors, *args, **kwargs)
            if isinstance(tensors, torch.Tensor):
                open_observers[-1].before_backward(tensors)
            elif isinstance(tensors, (list, tuple)):
                for tensor in tensors:
                    if isinstance(tensor, torch.Tensor):
                        open_observers[-1].before_backward(tensor)
            self._inside, crumbs = True, trail.current
            crumbs.phase("backward")
            try:
                return original(tensors, *args, **kwargs)
            finally:
                self._inside = False
                crumbs.phase("forward")

        return backward


def _telling_step(original: Callable[..., Any]) -> Any:
    def step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if open_observers:
            open_observers[-1].before_scaler_step()
        return original(scaler, optimizer, *args, **kwargs)

    return step
