"""Which `train()` and `eval()` calls made the mode of each module. Both go through the modules
below: what counts is the module that the user's line called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.instrument.frames import look_through
from nanodoc.trace.spans import Place, calling_places

look_through(__file__)


@dataclass(frozen=True, slots=True)
class UndoneEval:
    """An eval() of a part of the model, and the train() of the whole that took it back."""

    part: torch.nn.Module
    """What eval() was called on."""
    eval_at: Place
    train_at: Place


class ModeCalls:
    """Keeps the modules alive that it tells of: their identities are keys."""

    def __init__(self) -> None:
        # identity: the module, the line, what was called, whether the user's own line called it
        self._evals: dict[int, tuple[torch.nn.Module, Place, torch.nn.Module, bool]] = {}
        self._undone: dict[int, UndoneEval] = {}
        self._called: torch.nn.Module | None = None

    @property
    def eval_at(self) -> dict[int, Place]:
        """Where modules, by identity, were last put into eval mode."""
        return {key: place for key, (_, place, _, _) in self._evals.items()}

    @property
    def undone(self) -> dict[int, UndoneEval]:
        """Modules, by identity, that were in eval mode by themselves until a train() of a larger
        part."""
        return dict(self._undone)

    def watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Module.train`, written down."""

        def train(module: torch.nn.Module, mode: bool = True) -> torch.nn.Module:
            mine, caller = calling_places(1)
            with self.call(module):
                out: torch.nn.Module = original(module, mode)
                self.changed(module, mode, caller or mine, own=caller is None)
            return out

        return train

    @contextmanager
    def call(self, module: torch.nn.Module) -> Iterator[None]:
        """Around one call of `train(mode)`."""
        outermost = self._called is None
        if outermost:
            self._called = module
        try:
            yield
        finally:
            if outermost:
                self._called = None

    def changed(
        self, module: torch.nn.Module, mode: bool, place: Place | None, *, own: bool
    ) -> None:
        """Inside of `call`: the module is in that mode now. `own`: no library called for it, as
        one that loads a model does."""
        called = self._called
        if not mode:
            self._undone.pop(id(module), None)
            if place is not None:
                self._evals[id(module)] = module, place, called or module, own
            return
        known = self._evals.pop(id(module), None)
        if known is None or not known[3] or called is None or place is None:
            return
        part = known[2]
        if part is not called and any(below is part for below in called.modules()):
            self._undone[id(module)] = UndoneEval(part, known[1], place)
