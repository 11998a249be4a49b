"""A step that is run again is broken off when the time for the examination is up."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

_AGAIN = 0.25  # seconds; code that catches everything is told once more


class OutOfTime(BaseException):
    """Leaves the step, through code that catches `Exception`."""


@contextlib.contextmanager
def broken_off_at(moment: float) -> Iterator[None]:
    """Raises `OutOfTime` inside when `moment` comes, in seconds of `time.monotonic`, or at once
    where it is past. An op that runs then ends first. Where there are no timers (Windows), outside
    of the main thread, and where the training has set one of its own, nothing is broken off.
    """
    if moment == math.inf or not _free_to_use():
        yield
        return
    inside = True

    def over(number: int, frame: FrameType | None) -> None:
        if inside:
            raise OutOfTime

    before = signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(moment - time.monotonic(), 1e-6), _AGAIN)
        yield
    finally:
        inside = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _free_to_use() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
