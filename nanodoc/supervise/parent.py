"""The parent's side: starts the child, listens, passes signals on, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from nanodoc.heartbeat.last_words import ASK, DUMP
from nanodoc.heartbeat.memory_limit import MemoryWatch
from nanodoc.heartbeat.trail import EXAMINATION, START, Trail, TrailWriter, shared_page
from nanodoc.supervise.job import Job
from nanodoc.supervise.wire import Receiver, WireError, packed

if TYPE_CHECKING:
    from nanodoc.progress import Progress
    from nanodoc.report.report import Report

_START = Path(__file__).parent.parent / "pipeline" / "_child_start.py"
_PATIENCE = 30.0  # seconds to end by itself when told to; as launchers and clusters give
_QUIET = 5.0  # seconds that the end may take before somebody is told why nothing happens
# seconds besides the budget that nanodoc's own runs of steps may be silent for, where there is a
# --timeout
_EXAMINED = 120.0
_ANSWER = 1.0  # seconds to say where it hangs
_AGAIN = 0.1  # seconds after which it is asked again
_LARGEST_STACK = 64 * 1024


@dataclass(slots=True)
class Ended:
    """How a child ended. Without `report`, `usage` and `internal` it died."""

    report: Report | None = None
    usage: str | None = None
    internal: str | None = None
    interrupted: bool = False
    status: int = 0
    """The exit status; negative, the signal that ended it."""
    started: bool = False
    """It has come as far as its own first line."""
    silent_for: float | None = None
    """Seconds without a sign of life, after which it was ended."""
    waited: str | None = None
    """Why it was ended though it had not failed: it only waited for another rank."""
    trail: Trail = field(default_factory=Trail)
    stack: str = ""
    seconds: float = 0.0
    peak_memory: int | None = None
    killed_for_memory: bool = False


class Child:
    """One child process, from its start until nothing of it is left."""

    def __init__(
        self,
        job: Job,
        progress: Progress,
        timeout: float | None,
        environment: Mapping[str, str] | None = None,
        watch: Callable[[Trail], str | None] | None = None,
    ) -> None:
        """`watch` is told of the child's trail every now and then; what it gives is the reason to
        end the child."""
        self._job = job
        self._progress = progress
        self._timeout = timeout
        self._environment = {**os.environ, **(environment or {})}
        self._watch = watch
        self._receiver = Receiver()
        self._ended = Ended()
        self._left: tuple[int, resource.struct_rusage] | None = None
        self._told_to_end: float | None = None
        self._waiting_told = False
        self._done: float | None = None
        self._alive_at = time.monotonic()
        self._before: tuple[int | None, str, int, int] | None = None
        self._silent: Trail | None = None
        """What the child had said when its time was up."""

    def run(self) -> Ended:
        """Starts it and waits until it has ended, by itself or not."""
        page = shared_page()
        crumbs = TrailWriter(page)
        memory = MemoryWatch()
        read, write = os.pipe()
        began = time.monotonic()
        with tempfile.TemporaryFile() as stack:
            self._process = process = self._start(write, page, stack.fileno())
            os.close(write)
            os.close(page)
            try:
                with self._passing_signals_on():
                    self._listen(read, crumbs)
                    status, usage = self._reap()
            finally:
                if process.returncode is None:  # an error of our own
                    self._reap()
                os.close(read)
            self._ended.trail = trail = crumbs.trail()
            if self._silent is not None and trail.phase == EXAMINATION:
                # it hung; what it raised when the rank it waited for was ended is no cause
                self._ended.trail = self._silent
            crumbs.close()
            stack.seek(0)
            self._ended.stack = stack.read(_LARGEST_STACK).decode(errors="replace")
        self._ended.status = os.waitstatus_to_exitcode(status)
        self._ended.seconds = time.monotonic() - began
        # kibibytes on Linux, bytes on macOS: see getrusage(2) of each
        self._ended.peak_memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._ended.killed_for_memory = memory.kills() > 0
        return self._ended

    def _start(self, events: int, page: int, stack: int) -> subprocess.Popen[bytes]:
        """A group of its own: signals of the terminal reach it only through us, and nothing of it
        survives."""
        job_read, job_write = os.pipe()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # what multiprocessing's spawn passes on, too
        arguments = [str(number) for number in (events, page, job_read, stack, os.getpid())]
        # a terminal's input belongs to the foreground group: who reads it from another is stopped
        # for good
        reads = subprocess.DEVNULL if sys.stdin is None or sys.stdin.isatty() else None
        process = subprocess.Popen(
            [sys.executable, *flags, str(_START), *arguments],
            stdin=reads,
            stdout=_stderr() if self._job.launch is None else None,
            pass_fds=(events, page, job_read, stack),
            env=self._environment,
            process_group=0,
        )
        os.close(job_read)
        told = json.dumps(
            {
                "path": [os.getcwd() if entry == "" else entry for entry in sys.path],
                "argv": sys.argv,
            }
        ).encode()
        with os.fdopen(job_write, "wb") as file, contextlib.suppress(BrokenPipeError):
            file.write(told + b"\n" + packed("job", self._job))
        return process

    def _listen(self, events: int, crumbs: TrailWriter) -> None:
        """Until the process is gone, and all it said is read."""
        poll = select.poll()
        poll.register(events, select.POLLIN)
        end = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        if end is not None:
            poll.register(end, select.POLLIN)
        while not self._gone():
            if any(descriptor == events for descriptor, _ in poll.poll(50)):
                self._read(events)
            self._watch_the_clock(crumbs)
        if end is not None:
            os.close(end)
        while self._readable(events) and self._read(events):
            pass

    def _gone(self) -> bool:
        if hasattr(os, "waitid"):
            return (
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                is not None
            )
        if self._left is None:  # macOS before Python 3.13: to ask is to reap
            number, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            self._left = (status, usage) if number else None
        return self._left is not None

    def _reap(self) -> tuple[int, resource.struct_rusage]:
        """Where the child died or was ended, the group first: as long as its leader is not reaped,
        nobody else can have its number. What a training that ended by itself leaves running is its
        own business."""
        if (
            self._done is None
            or self._told_to_end is not None
            or self._ended.silent_for is not None
            or self._ended.waited is not None
        ):
            _kill_group(self._process.pid)
        status, usage = self._left or os.wait4(self._process.pid, 0)[1:]
        self._process.returncode = os.waitstatus_to_exitcode(status)
        return status, usage

    def _readable(self, events: int) -> bool:
        return bool(select.select([events], [], [], 0)[0])

    def _read(self, events: int) -> bool:
        data = os.read(events, 1 << 16)
        try:
            messages = self._receiver.feed(data)
        except WireError as error:
            self._ended.internal = f"the training process sent what is no report: {error}"
            _kill_group(self._process.pid)
            return False
        for kind, value in messages:
            self._hear(kind, value)
        return bool(data)

    def _hear(self, kind: str, value: Any) -> None:
        self._alive_at = time.monotonic()
        if kind == "started":
            self._ended.started = True
        elif kind == "step":
            self._progress.step(*value)
        elif kind == "live" and self._progress.live is not None:
            self._progress.live(*value)
        elif kind == "say":
            self._progress.say(value)
        elif kind == "report":
            self._ended.report = value
        elif kind == "usage":
            self._ended.usage = value
        elif kind == "internal":
            self._ended.internal = value
        elif kind == "interrupted":
            self._ended.interrupted = True
        if kind in ("report", "usage", "internal", "interrupted"):
            self._done = time.monotonic()

    def _watch_the_clock(self, crumbs: TrailWriter) -> None:
        now = time.monotonic()
        if self._told_to_end is not None:
            if now - self._told_to_end > _PATIENCE:
                _kill_group(self._process.pid)
            return
        # exit handlers, threads that are not daemons: the user's own, and nobody's hang
        if self._done is not None:
            self._tell_of_the_end(now - self._done)
            return
        if self._timeout is None and self._watch is None:
            return
        trail = crumbs.trail()
        reason = self._watch(trail) if self._watch is not None else None
        if reason is not None:
            self._ask_where(crumbs)
            # else it is only slow
            if trail.phase == "backward" or (crumbs.trail().words or {}).get("waits"):
                self._ended.waited = reason
                _kill_group(self._process.pid)
                return
        if self._timeout is None:
            return
        if trail.phase == START:  # torch is being imported: not the user's time
            self._alive_at = now
            return
        place = (trail.step, trail.phase, trail.finished, trail.signs)
        if self._before != place:
            self._before, self._alive_at = place, now
        examined = max(self._timeout, self._job.config.budget + _EXAMINED)
        patience = examined if trail.phase == EXAMINATION else self._timeout
        if now - self._alive_at > patience:
            self._ended.silent_for = now - self._alive_at
            if trail.phase != EXAMINATION:
                self._silent = trail
                self._ask_where(crumbs, stack_first=True)
            _kill_group(self._process.pid)

    def _tell_of_the_end(self, quiet_for: float) -> None:
        """Says once, where the child has ended its work and not itself, what is waited for."""
        if quiet_for > _QUIET and not self._waiting_told:
            self._waiting_told = True
            print(
                "nanodoc: the report is there; the training's process is still at its end "
                "(exit handlers, threads)",
                file=sys.stderr,
            )

    def _ask_where(self, crumbs: TrailWriter, *, stack_first: bool = False) -> None:
        """Where the process hangs: in its own words, if its interpreter gets to them, else from its
        stack. `stack_first`: the stack of this moment in any case, since a rank that waits for
        another answers only when that one has been ended, from somewhere else."""
        if ASK is None or DUMP is None:
            return
        if stack_first:
            os.kill(self._process.pid, DUMP)
        if not self._answers(crumbs, ASK) and not stack_first:
            self._answers(crumbs, DUMP)

    def _answers(self, crumbs: TrailWriter, number: int) -> bool:
        """Sends a signal and waits for the child's words. ASK is sent again and again: while the
        main thread still handles DUMP, the kernel gives ASK to another thread, which wakes nobody.
        """
        os.kill(self._process.pid, number)
        sent = time.monotonic()
        until = sent + _ANSWER
        while time.monotonic() < until and not self._gone():
            if (crumbs.trail().words or {}).get("said") == "asked":
                return True
            time.sleep(0.02)
            if number == ASK and time.monotonic() - sent > _AGAIN:
                os.kill(self._process.pid, number)
                sent = time.monotonic()
        return False

    @contextlib.contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        """The child has the user's handlers and ours: SIGINT ends its run after the step at hand, a
        second one at once."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            os.kill(self._process.pid, signal.SIGINT)

        def end(number: int, frame: FrameType | None) -> None:
            self._ended.interrupted = True
            self._told_to_end = self._told_to_end or time.monotonic()
            os.kill(self._process.pid, number)

        def pause(number: int, frame: FrameType | None) -> None:
            os.killpg(self._process.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.killpg(self._process.pid, signal.SIGCONT)

        def pass_on(number: int, frame: FrameType | None) -> None:
            os.kill(self._process.pid, number)

        handlers = {
            signal.SIGINT: interrupt,
            signal.SIGTERM: end,
            signal.SIGHUP: end,
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


def _stderr() -> int | None:
    """stdout is the report's alone: what the training prints goes to stderr."""
    try:
        return sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def _kill_group(number: int) -> None:
    """Everything the child started and that stayed with it. While the child is not reaped its
    number is nobody else's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(number, signal.SIGKILL)
