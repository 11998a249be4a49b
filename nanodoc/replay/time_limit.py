"""A step that is run again is broken off when the time for the examination is up."""

from __future__ import annotations

import contextlib
import gc
import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from nanodoc.looks.scheduler import OutOfTime
from nanodoc.trace.files import LIBRARY, STOP, USER, frame_kind, torch_file

_AGAIN = 0.25  # seconds; code that catches everything is told once more
_SOON = 0.01  # seconds until a better place is looked for
# An exception in the middle of these leaves something half done: they put things back.
_PUTTING_BACK = {"__enter__", "__exit__", "__del__", "__aenter__", "__aexit__"}
_STEP = str(Path(__file__).with_name("step.py"))


@contextlib.contextmanager
def broken_off_at(moment: float) -> Iterator[None]:
    """Raises `OutOfTime` inside when `moment` comes, in seconds of `time.monotonic`, or soon where
    it is past: in code of the training's or in a layer of torch's, never in nanodoc's own or where
    something is put back. An op that runs then ends first. Where there are no timers (Windows),
    outside of the main thread, and where the training has set one of its own, nothing is broken
    off.
    """
    if moment == math.inf or not _free_to_use():
        yield
        return
    inside = True

    def over(number: int, frame: FrameType | None) -> None:
        raises = inside and _can_end_in(frame)
        if inside:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN if raises else _SOON)
        if raises:
            raise OutOfTime

    before = signal.signal(signal.SIGALRM, over)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(moment - time.monotonic(), 1e-6))
        yield
    finally:
        inside = False
        if signal.getsignal(signal.SIGALRM) is over:  # else the training has set its own meanwhile
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _can_end_in(frame: FrameType | None) -> bool:
    """Nothing but the training's own code, with torch's layers that it calls, is cut short."""
    layers = 0
    while frame is not None and torch_file(frame.f_code.co_filename).startswith("nn/"):
        frame, layers = frame.f_back, layers + 1
    if frame is None:
        return False
    if frame_kind(frame.f_code.co_filename) not in (USER, LIBRARY):
        # a model made of torch's layers alone, which the step calls
        return layers > 0 and frame.f_code.co_filename == _STEP
    # an exception in what the garbage collector calls is printed, and lost
    collecting = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None and frame_kind(frame.f_code.co_filename) != STOP:
        code = frame.f_code
        if code.co_name in _PUTTING_BACK or code.co_filename == contextlib.__file__:
            return False
        if code in collecting:
            return False
        frame = frame.f_back
    # elsewhere nanodoc has called it: to flush a stdout of the script's own, to copy an object
    return frame is None or frame.f_code.co_filename == _STEP


def _free_to_use() -> bool:
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )
