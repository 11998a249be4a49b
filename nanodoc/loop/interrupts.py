"""Ctrl-C while steps run: the first ends the run after the step at hand, the second at once. Before
SIGTERM the report is asked for in the same way, or in that of a script; where it does not come
soon, the step at hand is broken off."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

from nanodoc.heartbeat.trail import EXAMINATION, here

_ways: list[Callable[[], None]] = []
_running: list[Interrupts] = []


def told_to_end() -> None:
    """The process is about to be ended: what was seen is to be told now. Outside of steps it raises
    `KeyboardInterrupt`, as Ctrl-C does there."""
    if not _ways:
        raise KeyboardInterrupt
    _ways[-1]()


def waited_long_enough() -> None:
    """Some seconds after `told_to_end` there is no report: a step that runs, or a look into what
    ended the steps, is broken off."""
    if _running:
        _running[-1].break_off()


@contextlib.contextmanager
def ending_by(way: Callable[[], None]) -> Iterator[None]:
    """`way` is what `told_to_end` comes to inside."""
    _ways.append(way)
    try:
        yield
    finally:
        _ways.remove(way)


class Interrupts:
    """A context manager around the steps; the handler that was there before is put back. Outside of
    the main thread it does nothing."""

    def __init__(self) -> None:
        self.asked = False
        self.in_step = False
        """A step is running."""
        self.broke_off = False
        """It, or a look into one, was not waited for: the report is to come at once."""
        self._before: Any = None
        self._set = False
        self._around = contextlib.ExitStack()

    def __enter__(self) -> Interrupts:
        self._around.enter_context(ending_by(self._conclude))
        _running.append(self)
        self._around.callback(_running.remove, self)
        if threading.current_thread() is threading.main_thread():
            self._before, self._set = signal.signal(signal.SIGINT, self._handle), True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._around.close()
        if self._set:
            signal.signal(signal.SIGINT, self._before)
            self._set = False

    def _conclude(self) -> None:
        """SIGTERM is about to come. A look into what ended the steps is broken off: the step that
        is run again may take longer than the report may."""
        if self.asked or here().trail().phase == EXAMINATION:
            self.break_off()
        self.asked = True

    def break_off(self) -> None:
        """Raises `KeyboardInterrupt`, once, where a step or a look into one is running."""
        examines = here().trail().phase == EXAMINATION
        self.asked = True
        if (self.in_step or examines) and not self.broke_off:
            self.broke_off = True
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._told()

    def _told(self) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
