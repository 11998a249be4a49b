"""Threads of the script's own, beside the one that trains."""

from __future__ import annotations

import sys
import threading

from nanodoc.trace.files import USER, frame_kind


def another_is_at_work() -> bool:
    """A thread runs the script's own code: what it draws, or puts somewhere, while a step is run
    again would be lost when the state of then is put back."""
    mine = threading.get_ident()
    for ident, innermost in sys._current_frames().items():
        frame = innermost if ident != mine else None
        while frame is not None:
            if frame_kind(frame.f_code.co_filename) == USER:
                return True
            frame = frame.f_back
    return False
