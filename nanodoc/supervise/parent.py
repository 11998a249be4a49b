"""The parent's side: starts the child, listens, passes signals on, and leaves nobody behind."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanodoc.errors import UsageError
from nanodoc.heartbeat.last_words import ASK, DUMP
from nanodoc.heartbeat.memory_limit import MemoryWatch
from nanodoc.heartbeat.trail import EXAMINATION, START, Trail, TrailWriter
from nanodoc.supervise._guardian import end_tree
from nanodoc.supervise.job import Job
from nanodoc.supervise.signals import Signals
from nanodoc.supervise.start import ChildProcess, start
from nanodoc.supervise.terminal import Lent
from nanodoc.supervise.wire import Receiver, WireError, packed

if TYPE_CHECKING:
    from nanodoc.progress import Progress
    from nanodoc.report.report import Report

_GUARDIAN = Path(__file__).parent / "_guardian.py"
_QUIET = 5.0  # seconds that the end may take before somebody is told why nothing happens
# seconds besides the budget that nanodoc's own runs of steps may be silent for, where there is a
# --timeout
_EXAMINED = 120.0
_ANSWER = 1.0  # seconds to say where it hangs
# seconds in which the other ranks, which stand still for about as long, are asked, too
_OTHERS = 2.0
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
        watch: Callable[[Trail, TrailWriter], str | None] | None = None,
        longest: float | None = None,
    ) -> None:
        """`watch` is told of the child's trail every now and then, and may answer on its page; what
        it gives is the reason to end the child where that waits. After `longest` seconds it is
        ended whatever it does."""
        self._job = job
        self._progress = progress
        self._timeout = timeout
        self._environment = {**os.environ, **(environment or {})}
        self._watch = watch
        self._until = time.monotonic() + longest if longest is not None else math.inf
        self._receiver = Receiver()
        self._ended = Ended()
        self._left: tuple[int, resource.struct_rusage] | None = None
        self._signals = Signals(reports=watch is None)
        self._guardian: subprocess.Popen[bytes] | None = None
        self._lent: Lent | None = None
        self._waiting_told = False
        self._done: float | None = None
        self._repeats = job.again is not None and job.again.muted
        """What it leaves running is nobody's: the first run has left the same."""
        self._alive_at = time.monotonic()
        self._before: tuple[int | None, str, int, int] | None = None
        self._silent: Trail | None = None
        """What the child had said when its time was up."""

    def run(self) -> Ended:
        """Starts it and waits until it has ended, by itself or not."""
        memory = MemoryWatch()
        began = time.monotonic()
        with self._guarded():
            child = self._started()
            self._process, self._asks = child.process, child.asks
            process = child.process
            self._tell_guardian(b"%d\n" % process.pid)
            try:
                crumbs = TrailWriter(child.page)
                os.close(child.page)
                script = self._job.launch is not None
                runs = script and self._job.command == "run" and not self._repeats
                if child.has_terminal and runs:
                    self._lent = Lent(process.pid)
                with (
                    self._signals.passed_on(process.pid, self._told_to_end),
                    self._lent.until_it_ends() if self._lent else contextlib.nullcontext(),
                ):
                    child.give(
                        packed("job", self._job),
                        guarded=self._guardian is not None,
                        to_stderr=not script,
                        asks=self._lent is not None,
                    )
                    self._listen(child.events, crumbs)
                    status, usage = self._reap()
            finally:
                if process.returncode is None:  # an error of our own
                    self._reap()
                os.close(child.events)
                os.close(child.asks)
            self._ended.trail = trail = crumbs.trail()
            if self._silent is not None and trail.phase == EXAMINATION:
                # it hung; what it raised when the rank it waited for was ended is no cause
                self._ended.trail = replace(self._silent, collectives=trail.collectives)
            crumbs.close()
            with child.stack as stack:
                stack.seek(0)
                self._ended.stack = stack.read(_LARGEST_STACK).decode(errors="replace")
        self._ended.status = os.waitstatus_to_exitcode(status)
        # a repeated run may have been too young to say so itself
        self._ended.interrupted |= self._repeats and self._signals.interrupted
        self._ended.seconds = time.monotonic() - began
        # kibibytes on Linux, bytes on macOS: see getrusage(2) of each
        self._ended.peak_memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._ended.killed_for_memory = memory.kills() > 0
        return self._ended

    def _started(self) -> ChildProcess:
        try:
            return start(self._environment)
        except OSError as error:
            words = f"{error.strerror or error}; is there a file-size limit (ulimit -f)?"
            raise UsageError(f"can't share memory with the training process: {words}") from error

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Where we are ended by SIGKILL, another process ends the child's tree."""
        with contextlib.suppress(OSError):  # no process more is to be had
            self._guardian = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GUARDIAN)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            yield
        except BaseException:  # between the child's start and its end: nobody else looks after it
            process = getattr(self, "_process", None)
            if process is not None and process.returncode is None:
                end_tree(process.pid)
            raise
        finally:
            if self._guardian is not None:
                self._tell_guardian(b"done")
                self._guardian.communicate()

    def _tell_guardian(self, text: bytes) -> None:
        if self._guardian is not None and self._guardian.stdin is not None:
            with contextlib.suppress(OSError):
                self._guardian.stdin.write(text)
                self._guardian.stdin.flush()

    def _told_to_end(self, number: int) -> None:
        self._ended.interrupted = True
        self._signals.end(number, self._process.pid, listens=self._ended.started)

    def _listen(self, events: int, crumbs: TrailWriter) -> None:
        """Until the process is gone, and all it said is read."""
        poll = select.poll()
        poll.register(events, select.POLLIN)
        end = None
        if hasattr(os, "pidfd_open"):
            # kernels before Linux 5.3 do not know it, nor do some sandboxes: asking often must do
            with contextlib.suppress(OSError):
                end = os.pidfd_open(self._process.pid)
                poll.register(end, select.POLLIN)
        while not self._gone():
            if any(descriptor == events for descriptor, _ in poll.poll(50)):
                self._read(events)
            if self._lent is not None and self._lent.stopped():
                self._alive_at = time.monotonic()
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
            or self._repeats
            or self._signals.told_to_end
            or self._ended.silent_for is not None
            or self._ended.waited is not None
        ):
            end_tree(self._process.pid)
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
            self._ended.internal = f"the training process sent an invalid report: {error}"
            end_tree(self._process.pid)
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
        elif kind == "handled":
            self._signals.handled()
        if kind in ("report", "usage", "internal", "interrupted"):
            self._done = time.monotonic()

    def _watch_the_clock(self, crumbs: TrailWriter) -> None:
        if self._ended.silent_for is not None or self._ended.waited is not None:
            return  # it has been ended, and is not gone yet
        now = time.monotonic()
        if self._signals.told_to_end:
            if self._signals.watch(self._process.pid, reported=self._done is not None):
                end_tree(self._process.pid)
            return
        # exit handlers, threads that are not daemons: the user's own, and nobody's hang
        if self._done is not None:
            if self._repeats:
                end_tree(self._process.pid)
            else:
                self._tell_of_the_end(now - self._done)
            return
        if now > self._until:
            self._ended.silent_for = now - self._alive_at
            end_tree(self._process.pid)
            return
        if self._timeout is None and self._watch is None:
            return
        trail = crumbs.trail()
        reason = self._watch(trail, crumbs) if self._watch is not None else None
        if reason is not None:
            self._ask_where(crumbs)
            # else it is only slow
            if trail.phase == "backward" or (crumbs.trail().words or {}).get("waits"):
                self._ended.waited = reason
                self._ask_for_collectives(crumbs)
                end_tree(self._process.pid)
                return
        if self._timeout is not None:
            self._judge_silence(now, trail, crumbs, self._timeout)

    def _judge_silence(self, now: float, trail: Trail, crumbs: TrailWriter, timeout: float) -> None:
        """Ends the child where it has stood still for longer than it may."""
        if trail.phase == START:  # torch is being imported: not the user's time
            self._alive_at = now
            return
        place = (trail.step, trail.phase, trail.finished, trail.signs)
        if self._before != place:
            self._before, self._alive_at = place, now
        examined = max(timeout, self._job.config.budget + _EXAMINED)
        patience = examined if trail.phase == EXAMINATION else timeout
        if now - self._alive_at > patience:
            self._ended.silent_for = now - self._alive_at
            if trail.phase != EXAMINATION:
                self._silent = trail
                self._ask_where(crumbs, stack_first=True)
                self._wait_for_others()
            end_tree(self._process.pid)

    def _tell_of_the_end(self, quiet_for: float) -> None:
        """Says once, where the child has ended its work and not itself, what is waited for."""
        if quiet_for > _QUIET and not self._waiting_told:
            self._waiting_told = True
            print(
                "nanodoc: the report is done; waiting for the training process to exit (exit "
                "handlers, threads)",
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
            self._ask_for_collectives(crumbs)
        if not self._answers(crumbs, ASK) and not stack_first:
            self._answers(crumbs, DUMP)

    def _wait_for_others(self) -> None:
        """Of several ranks the first that is ended lets the others go on, with an error: they are
        to be asked before. This one stays where it is meanwhile."""
        if self._watch is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGSTOP)
        time.sleep(_OTHERS)

    def _ask_for_collectives(self, crumbs: TrailWriter) -> None:
        """Which ones the child has entered, where it is one of several ranks. A thread of it tells,
        and it is waited for; without one nothing is told."""
        if self._watch is None:
            return
        crumbs.forget_collectives()
        with contextlib.suppress(OSError):  # it has just ended
            os.write(self._asks, b"?")
        until = time.monotonic() + _ANSWER
        while time.monotonic() < until and not self._gone():
            if crumbs.trail().collectives is not None:
                return
            time.sleep(0.02)

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
