"""A thread that tells, when the parent asks, which collectives this rank entered last: the main
thread waits in one of them, in C++, and hears no signal there."""

from __future__ import annotations

import _thread
import os
import select

from nanodoc.heartbeat.flight_recorder import last_collectives
from nanodoc.heartbeat.trail import here

_asked: int | None = None
_owner: int | None = None
_started = False


def hears(descriptor: int) -> None:
    """The parent writes to the other end of this pipe when it asks."""
    global _asked, _owner
    _asked, _owner = descriptor, os.getpid()


def start_answering() -> None:
    """Starts the thread, once in a process; it sleeps in a system call until it is asked, and ends
    with the process. Nothing where no parent asks: a process that the training started itself, or
    a training that is watched from inside.

    It is none of `threading.enumerate()`: the training did not start it.
    """
    global _started
    if _asked is None or _started or _owner != os.getpid():
        return
    _started = True
    while select.select([_asked], [], [], 0)[0] and os.read(_asked, 64):
        pass  # questions of before: who asked has gone on
    _thread.start_new_thread(_answer, (_asked,))


def _answer(asked: int) -> None:
    trail = here()
    while True:
        try:
            if not os.read(asked, 1):
                return
        except OSError:  # the training has closed every descriptor
            return
        try:
            trail.entered(last_collectives())
        except ValueError:  # the page is closed: the process ends
            return
