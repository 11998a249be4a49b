"""Wraps what tells that a script trains: optimizers and loss scalers that are made and step, and
backward passes. Module hooks are none of them: a compiler would trace into those.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook


def installed(
    *,
    made: Callable[[Any], None],
    stepping: Callable[[torch.optim.Optimizer, Any, Any], Any],
    by_scaler: Callable[[torch.optim.Optimizer], None],
    backward: Callable[[Any], None],
) -> Callable[[], None]:
    """Puts the wrappers in place; what it returns takes them away. `made` is told of every
    optimizer and loss scaler, `stepping` of an optimizer that is about to step, with the arguments
    of its step, `by_scaler` of one whose loss scaler is about to decide on it, `backward` of the
    tensors that a backward pass begins at."""
    optimizer, scaler, step = torch.optim.Optimizer.__init__, GradScaler.__init__, GradScaler.step
    original = torch.autograd.backward

    def making(self: Any, *args: Any, **kwargs: Any) -> None:
        optimizer(self, *args, **kwargs)
        made(self)

    def making_scaler(self: Any, *args: Any, **kwargs: Any) -> None:
        scaler(self, *args, **kwargs)
        made(self)

    def scaled(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        by_scaler(optimizer)
        return step(self, optimizer, *args, **kwargs)

    inside: set[int] = set()

    def differentiating(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        mine = threading.get_ident()
        if mine in inside:  # under a function mode torch calls it a second time
            return original(tensors, *args, **kwargs)
        backward(tensors)
        inside.add(mine)
        try:
            return original(tensors, *args, **kwargs)
        finally:
            inside.discard(mine)

    torch.optim.Optimizer.__init__ = making  # type: ignore[method-assign]  # put back below
    GradScaler.__init__ = making_scaler  # type: ignore[method-assign]  # put back below
    GradScaler.step = scaled  # type: ignore[method-assign]  # put back below
    torch.autograd.backward = differentiating
    hook = register_optimizer_step_pre_hook(stepping)

    def put_back() -> None:
        nonlocal made, by_scaler, backward
        # a cache of torch's may keep a wrapper, which must not keep the script's variables alive
        made = by_scaler = backward = _nobody
        hook.remove()
        torch.optim.Optimizer.__init__ = optimizer  # type: ignore[method-assign]  # the original
        GradScaler.__init__ = scaler  # type: ignore[method-assign]  # the original
        GradScaler.step = step  # type: ignore[method-assign]  # the original
        if torch.autograd.backward is differentiating:
            torch.autograd.backward = original

    return put_back


def _nobody(_: Any) -> None:
    pass
