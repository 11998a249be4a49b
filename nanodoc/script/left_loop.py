"""The objects around a loop as the loop left them: a trainer says by its own state that it trains,
and takes that back behind its loop. Steps that are run again when the script is over need it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from nanodoc.replay.objects import PlainState

_SHARE = 0.02  # of the time between two ends of the loop that keeping its state may take
_FREE = 0.1  # seconds that it may take in all, whatever the share: short trainings have short loops


class _Step(Protocol):
    variables: dict[str, Any]

    def reached_variables(self) -> Iterator[tuple[str, Any, Any]]: ...


class LeftLoop:
    """Kept each time the loop ends, unless it ends too often for that: then as an earlier end left
    them, which says as well that they train."""

    def __init__(self) -> None:
        self._state: PlainState | None = None
        self._cost = self._at = self._spent = 0.0

    def note(self, step: _Step) -> None:
        """The loop has ended."""
        began = time.perf_counter()
        if (began - self._at) * _SHARE >= self._cost or self._spent + self._cost <= _FREE:
            self._state = PlainState(_values(step).values())
            self._cost = time.perf_counter() - began
            self._spent += self._cost
        self._at = began

    @contextlib.contextmanager
    def again(self, step: _Step) -> Iterator[None]:
        """Inside, the objects are as the loop left them last."""
        if self._state is None:
            yield
            return
        now = PlainState(_values(step).values())
        self._state.restore()
        try:
            yield
        finally:
            now.restore()


def _values(step: _Step) -> Mapping[str, Any]:
    return {name: value for name, _, value in step.reached_variables()}
