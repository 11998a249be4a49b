"""A watcher that cannot end a training by an error of its own: it is left out from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch

from nanodoc.looks.own_errors import is_own, own_error
from nanodoc.measure.gradients import Vitals
from nanodoc.replay.step_state import StepState
from nanodoc.watchers.watch import NOTHING, RunEnd, Watch

_Value = TypeVar("_Value")


class GuardedWatch(Watch):
    """`watch` until it raises. `what` it looks at is told as not checked from then on."""

    def __init__(self, watch: Watch, what: str) -> None:
        self.inner = watch
        self._watch: Watch = watch  # one that does nothing, once `inner` is left out
        self._notes = watch.notes
        self._what = what

    @property
    def notes(self) -> list[tuple[str, str]]:  # type: ignore[override]  # the watcher's own
        return self._notes

    def hears(self, moment: str) -> bool:
        return self.inner.hears(moment)

    def _left_out(self, error: BaseException) -> None:
        if self._watch is not self.inner:
            return  # it is told already
        self._watch = Watch()
        self._notes.append((self._what, own_error(error)))

    def _passed_over(self, error: Exception) -> None:
        """Raises what is not the watcher's own."""
        if not is_own(error):
            raise error
        self._left_out(error)

    def _told(self, tell: Callable[[Watch], _Value], otherwise: _Value) -> _Value:
        try:
            return tell(self._watch)
        except Exception as error:
            self._passed_over(error)
            return otherwise

    @contextmanager
    def _around(self, manager: AbstractContextManager[None]) -> Iterator[None]:
        """The watcher's context manager; an error that passes through it is not its own."""
        entered = self._told(lambda watch: _entered(manager), None)
        if entered is None:
            yield
            return
        try:
            yield
        except BaseException as error:
            self._exited(entered, error)
            raise
        else:
            self._exited(entered, None)

    def _exited(self, entered: AbstractContextManager[None], passing: BaseException | None) -> None:
        try:
            kind = None if passing is None else type(passing)
            entered.__exit__(kind, passing, None if passing is None else passing.__traceback__)
        except Exception as error:
            if error is passing:
                return
            self._passed_over(error)

    def around_run(self) -> AbstractContextManager[None]:
        return self._around(self._told(lambda watch: watch.around_run(), NOTHING))

    @property
    def hopeless(self) -> bool:
        return self._told(lambda watch: watch.hopeless, False)

    # the moments of every step are told without a detour: a small step would feel it

    def before_step(self, start: StepState) -> float:
        try:
            return self._watch.before_step(start)
        except Exception as error:
            self._passed_over(error)
            return 0.0

    def around_step(self, start: StepState) -> AbstractContextManager[None]:
        try:
            manager = self._watch.around_step(start)
        except Exception as error:
            self._passed_over(error)
            return NOTHING
        return manager if manager is NOTHING else self._around(manager)

    def scalars(self, *, done: bool = False) -> list[torch.Tensor]:
        try:
            return self._watch.scalars(done=done)
        except Exception as error:
            self._passed_over(error)
            return []

    def gradients(self) -> None:
        try:
            self._watch.gradients()
        except Exception as error:
            self._passed_over(error)

    def after_backward(self, start: StepState, norms: Mapping[str, float]) -> float:
        try:
            return self._watch.after_backward(start, norms)
        except Exception as error:
            self._passed_over(error)
            return 0.0

    def after_step(self, start: StepState, vitals: Vitals, seconds: float) -> None:
        try:
            self._watch.after_step(start, vitals, seconds)
        except Exception as error:
            self._passed_over(error)

    def line(self) -> dict[str, Any]:
        try:
            return self._watch.line()
        except Exception as error:
            self._passed_over(error)
            return {}

    def at_end(self, end: RunEnd) -> None:
        self._told(lambda watch: watch.at_end(end), None)

    def facts(self) -> dict[str, Any]:
        return self._told(lambda watch: watch.facts(), {})


def _entered(manager: AbstractContextManager[None]) -> AbstractContextManager[None]:
    manager.__enter__()
    return manager
