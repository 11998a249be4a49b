"""A child process from its first moment until it is given its job. `nanodoc run` starts it before
the command line is read, so that it imports torch meanwhile. Only the standard library and a page
of memory are needed here."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nanodoc.heartbeat.trail import shared_page
from nanodoc.supervise import terminal

_START = Path(__file__).parent.parent / "pipeline" / "_child_start.py"


class ChildProcess:
    """A started process that waits for its job; `events`, `page` and `stack` are what it is heard
    by, and `asks` what it is asked by."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """It leads a group of its own: signals of the terminal reach it only through us, and
        nothing of it survives. Raises OSError where the system gives no more."""
        self._environment = dict(environment)
        self._folder = os.getcwd()
        # `given` are the child's ends, which are of no use here once it has started
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as given:
            self.page = shared_page()
            opened.callback(os.close, self.page)
            self.events, events = _pipe(opened, given)
            job, self._job = _pipe(given, opened)
            asked, self.asks = _pipe(given, opened)
            self.stack = opened.enter_context(tempfile.TemporaryFile())
            passed = (events, self.page, job, self.stack.fileno(), asked)
            arguments = [str(number) for number in (*passed, os.getpid())]
            flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # what multiprocessing's spawn passes on, too
            # who reads a terminal's input from the background is stopped for good
            tty = sys.stdin is None or sys.stdin.isatty()
            self.has_terminal = terminal.is_ours()
            reads = subprocess.DEVNULL if tty and not self.has_terminal else None
            self.process = subprocess.Popen(
                [sys.executable, *flags, str(_START), *arguments],
                stdin=reads,
                pass_fds=passed,
                env=self._environment,
                process_group=0,
            )
            given.close()
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                os.write(self._job, _line({"path": _path()}))
            opened.pop_all()

    def fits(self, environment: Mapping[str, str]) -> bool:
        """It is as one that would be started now."""
        return (self._environment, self._folder) == (dict(environment), os.getcwd())

    def give(self, job: bytes, *, guarded: bool, to_stderr: bool, asks: bool) -> None:
        """`to_stderr`: what it prints goes there. A child that is not `guarded` is ended by the
        kernel with its parent. `asks`: it is lent the terminal that it has."""
        told = {
            "path": _path(),
            "argv": sys.argv,
            "guarded": guarded,
            "to_stderr": to_stderr,
            "silent": self.has_terminal and not asks,
        }
        # where it has ended already, closing the file writes, too
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._job, "wb") as file:
            file.write(_line(told) + job)

    def dropped(self) -> None:
        """Ends it before it has a job."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        _, status = os.waitpid(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        for descriptor in (self._job, self.events, self.page, self.asks):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.stack.close()


_early: ChildProcess | None = None


def start_early() -> None:
    """Starts the child that the next `start` gives, if the system lets it be."""
    global _early
    with contextlib.suppress(OSError):
        _early = ChildProcess(os.environ)


def drop_early() -> None:
    """Ends the child that nobody wanted."""
    global _early
    if _early is not None:
        _early.dropped()
    _early = None


def start(environment: Mapping[str, str]) -> ChildProcess:
    """The child that was started early, if it is as one that is started now; else a new one.

    Raises OSError where the system gives no process, memory or file more.
    """
    global _early
    if _early is None or not _early.fits(environment):
        drop_early()
        return ChildProcess(environment)
    started, _early = _early, None
    return started


def _pipe(reads: contextlib.ExitStack, writes: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe's ends, each closed by a stack."""
    read, write = os.pipe()
    reads.callback(os.close, read)
    writes.callback(os.close, write)
    return read, write


def _path() -> list[str]:
    return [os.getcwd() if entry == "" else entry for entry in sys.path]


def _line(told: object) -> bytes:
    return json.dumps(told).encode() + b"\n"
