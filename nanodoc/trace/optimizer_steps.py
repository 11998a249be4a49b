"""Which threads are inside `Optimizer.step`, and where the user's code called it, by hooks that are
taken off again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any

from nanodoc.instrument.originals import ours, theirs
from nanodoc.instrument.taps import AFTER_STEP, BEFORE_STEP
from nanodoc.trace.spans import Place, calling_places

Closure = Callable[[], Any]


def around_closure(args: Any, kwargs: Any, around: Callable[[Closure], Any]) -> Any:
    """What a pre-hook of `Optimizer.step` returns so that the closure it was given, if any, is
    called as `around(closure)`: an LBFGS evaluates it several times, and some trainers run the
    whole step in it."""
    if callable(kwargs.get("closure")):
        closure = theirs(kwargs["closure"])
        return args, {**kwargs, "closure": ours(lambda: around(closure))}
    if len(args) > 1 and callable(args[1]):
        closure = theirs(args[1])
        return (args[0], ours(lambda: around(closure)), *args[2:]), kwargs
    return None


class OptimizerSteps:
    """The optimizers' steps of one trace. A context manager around it. `recorded` are the ops
    up to now; without `places` nobody asks where a step was called."""

    def __init__(self, recorded: Sized, *, places: bool) -> None:
        self._recorded = recorded
        self._places = places
        self._undo: list[Callable[[], None]] = []
        self.inside: set[int] = set()
        """Threads that are in an optimizer's step."""
        self.calls: list[tuple[int, Place | None]] = []
        """How many ops had been recorded when a step was called, and where."""

    def __enter__(self) -> OptimizerSteps:
        self._undo = [BEFORE_STEP.listen(self._begins), AFTER_STEP.listen(self._ended)]
        return self

    def __exit__(self, *exc: Any) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def _begins(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self.inside.add(threading.get_ident())
        if self._places:
            own, caller = calling_places(2)
            self.calls.append((len(self._recorded), caller or own))
        return around_closure(args, kwargs, self._closure)

    def _closure(self, closure: Closure) -> Any:
        """Its forward and backward are the training's, not the optimizer's."""
        self.inside.discard(threading.get_ident())
        try:
            return closure()
        finally:
            self.inside.add(threading.get_ident())

    def _ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.inside.discard(threading.get_ident())
