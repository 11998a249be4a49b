"""Wraps what tells that a script trains: optimizers and loss scalers that are made and step, and
backward passes. Module hooks are none of them: a compiler would trace into those.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from nanodoc.instrument.taps import (
    BACKWARD,
    BEFORE_STEP,
    COMPILE,
    OPTIMIZER_MADE,
    SCALER_MADE,
    SCALER_STEP,
)


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
    inside: set[int] = set()

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            made(self)

        return __init__

    def scaled(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            by_scaler(optimizer)
            return original(self, optimizer, *args, **kwargs)

        return step

    def differentiating(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            mine = threading.get_ident()
            if mine in inside:  # under a function mode torch calls it a second time
                return original(tensors, *args, **kwargs)
            backward(tensors)
            inside.add(mine)
            try:
                return original(tensors, *args, **kwargs)
            finally:
                inside.discard(mine)

        return call

    undo = [
        COMPILE.listen(_compiling),
        OPTIMIZER_MADE.listen(making),
        SCALER_MADE.listen(making),
        SCALER_STEP.listen(scaled),
        BACKWARD.listen(differentiating),
        BEFORE_STEP.listen(stepping),
    ]

    def put_back() -> None:
        nonlocal made, by_scaler, backward
        # a cache of torch's may keep a wrapper, which must not keep the script's variables alive
        made = by_scaler = backward = _nobody
        while undo:
            undo.pop()()

    return put_back


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        BEFORE_STEP.leave_uncompiled()
        return compiled

    return compile


def _nobody(_: Any) -> None:
    pass
