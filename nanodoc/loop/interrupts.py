"""Ctrl-C while steps run: the first ends the run after the step at hand, the second at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """A context manager around the steps; the handler that was there before is put back. Outside of
    the main thread it does nothing."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None
        self._set = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before, self._set = signal.signal(signal.SIGINT, self._handle), True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._set:
            signal.signal(signal.SIGINT, self._before)
            self._set = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
