"""Backward passes, optimizers and GradScalers tell the observer that is open.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from nanodoc.heartbeat import trail


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
    telling = _Telling()
    told = [
        (owner, name, original := getattr(owner, name), make(original))
        for owner, name, make in (
            (torch.autograd, "backward", telling.backward),  # which a tensor's own calls, too
            (GradScaler, "step", _telling_step),
        )
    ]
    # for the whole run, too: another thread of the training's may step while a hook would be added
    hook = register_optimizer_step_pre_hook(_before_any_step)
    _installs += 1
    for owner, name, _, replacement in told:
        setattr(owner, name, replacement)
    try:
        yield
    finally:
        _installs -= 1
        hook.remove()
        for owner, name, original, replacement in told:
            # somebody else may have wrapped it since
            if getattr(owner, name) is replacement:
                setattr(owner, name, original)


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
        @functools.wraps(original)
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
    @functools.wraps(original)
    def step(scaler: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if open_observers:
            open_observers[-1].before_scaler_step()
        return original(scaler, optimizer, *args, **kwargs)

    return step
