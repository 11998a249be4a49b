"""Which threads are inside `Optimizer.step`, and where the user's code called it, by hooks that are
taken off again."""

from __future__ import annotations

import threading
from collections.abc import Sized
from typing import Any

from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nanodoc.trace.spans import Place, calling_places


class OptimizerSteps:
    """The optimizers' steps of one trace. A context manager around it. `recorded` are the ops
    up to now; without `places` nobody asks where a step was called."""

    def __init__(self, recorded: Sized, *, places: bool) -> None:
        self._recorded = recorded
        self._places = places
        self._handles: list[Any] = []
        self.inside: set[int] = set()
        """Threads that are in an optimizer's step."""
        self.calls: list[tuple[int, Place | None]] = []
        """How many ops had been recorded when a step was called, and where."""

    def __enter__(self) -> OptimizerSteps:
        self._handles = [
            register_optimizer_step_pre_hook(self._begins),
            register_optimizer_step_post_hook(self._ended),
        ]
        return self

    def __exit__(self, *exc: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.inside.add(threading.get_ident())
        if self._places:
            own, caller = calling_places(2)
            self.calls.append((len(self._recorded), caller or own))

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.inside.discard(threading.get_ident())
