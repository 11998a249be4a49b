"""The signals of a command that has a training in a child: which it passes on, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType

from nanodoc.heartbeat.last_words import CONCLUDE

_PATIENCE = 30.0  # seconds to end by itself when told to; as launchers and clusters give
# seconds for the report of a training that is told to end: `docker stop` kills after 10
_TO_REPORT = 5.0
_TO_END_THE_STEP = 2.0
"""Seconds, of those, in which the step at hand may come to its end; then it is broken off."""


class Signals:
    """What becomes of the signals while a child runs."""

    def __init__(self, *, reports: bool) -> None:
        """`reports`: the child is asked for its report before SIGTERM reaches it."""
        self._reports = reports and CONCLUDE is not None
        self._told: tuple[float, int] | None = None  # when, and by which signal
        self._asked = False
        self._again = False
        self._sent = False
        self.interrupted = False
        """SIGINT has come, and was passed on."""

    @property
    def told_to_end(self) -> bool:
        """SIGTERM or SIGHUP has come."""
        return self._told is not None

    def end(self, number: int, child: int, *, listens: bool) -> None:
        """The command is told to end. `listens`: the child has come as far as its handlers."""
        again, self._told = self._told is not None, self._told or (time.monotonic(), number)
        self._asked = self._reports and listens and number == signal.SIGTERM and not again
        if self._asked:
            self._ask(child)
        else:
            self._send(child)

    def _ask(self, child: int) -> None:
        assert CONCLUDE is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, CONCLUDE)

    def handled(self) -> None:
        """The training has a handler of its own, which was called instead."""
        self._sent = True

    def watch(self, child: int, *, reported: bool) -> bool:
        """Passes the signal on when the report has come, or has not come in time. True where the
        child has not ended in its time."""
        if self._told is None:
            return False
        since = time.monotonic() - self._told[0]
        waits = self._asked and not self._sent and not reported
        if waits and not self._again and since > _TO_END_THE_STEP:
            self._again = True
            self._ask(child)
        if self._asked and not self._sent and (reported or since > _TO_REPORT):
            self._send(child)
        return since > _PATIENCE

    def _send(self, child: int) -> None:
        assert self._told is not None
        self._sent = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, self._told[1])

    @contextlib.contextmanager
    def passed_on(self, child: int, end: Callable[[int], None]) -> Iterator[None]:
        """The child has the user's handlers and ours: SIGINT ends its run after the step at hand, a
        second one at once. `end` is told of a signal to end."""

        def told(number: int, frame: FrameType | None) -> None:
            end(number)

        def pause(number: int, frame: FrameType | None) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGCONT)

        def pass_on(number: int, frame: FrameType | None) -> None:
            self.interrupted |= number == signal.SIGINT
            with contextlib.suppress(ProcessLookupError):  # it has ended just now
                os.kill(child, number)

        handlers = {
            signal.SIGINT: pass_on,
            signal.SIGTERM: told,
            signal.SIGHUP: told,
            signal.SIGTSTP: pause,
            signal.SIGUSR1: pass_on,
            signal.SIGUSR2: pass_on,
            signal.SIGQUIT: pass_on,
            signal.SIGWINCH: pass_on,
        }
        try:
            # what was ignored when we were started (nohup, a shell's background) stays ignored, in
            # the child as well
            wanted = {
                number: handler
                for number, handler in handlers.items()
                if signal.getsignal(number) != signal.SIG_IGN
            }
            before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
        except ValueError:  # not the main thread: whoever embeds us has the signals
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
