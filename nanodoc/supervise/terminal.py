"""The terminal's input belongs to one group of processes, the one in the foreground. While a script
runs that is the script's, as under a shell: it may ask, be debugged, interrupted and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def is_ours() -> bool:
    """A shell has started this command in the foreground of a terminal, and nothing else with it:
    what a launcher or another program's script starts shares the terminal with them."""
    if sys.stdin is None or not hasattr(os, "waitid") or "RANK" in os.environ:
        return False
    try:
        number = sys.stdin.fileno()
        leads = os.getpgrp() == os.getpid()
        return leads and os.isatty(number) and os.tcgetpgrp(number) == os.getpgrp()
    except (OSError, ValueError):
        return False


class Lent:
    """The terminal while a child's group has it."""

    def __init__(self, child: int) -> None:
        self._child = child
        self._number = sys.stdin.fileno()

    def stopped(self) -> bool:
        """Ctrl-Z, if that has come: this command stops with the child, and they go on together.
        True where they have."""
        try:
            seen = os.waitid(os.P_PID, self._child, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # it has ended
            return False
        if seen is None or seen.si_status not in _STOPS:
            return False
        # `bg`, and `fg` later: nobody has told us that the terminal is ours again
        if seen.si_status == signal.SIGTSTP or not self._in_front():
            self._give(os.getpgrp())
            self._stop()  # the shell has the terminal until `fg` or `bg`
        if self._in_front():
            self._give(self._child)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGCONT)
        return True

    def _stop(self) -> None:
        """As Ctrl-Z stops a program that has no handler of its own."""
        before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, before)

    def _in_front(self) -> bool:
        try:
            return os.tcgetpgrp(self._number) == os.getpgrp()
        except OSError:
            return False

    def _give(self, group: int) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed, or the child has just ended
            os.tcsetpgrp(self._number, group)

    @contextlib.contextmanager
    def until_it_ends(self) -> Iterator[None]:
        """Gives it to the child, and takes it back."""
        # who writes to a terminal from the background, or takes it, may be stopped for that
        try:
            before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        except ValueError:  # not the main thread
            yield
            return
        self._give(self._child)
        try:
            yield
        finally:
            self._give(os.getpgrp())
            signal.signal(signal.SIGTTOU, before)
