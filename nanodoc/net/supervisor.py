"""The main thread of a rank: it writes the rank's record, watches the others, and reports where it
is its turn.

It never enters a collective, so it can always speak: when the checks hang, when another rank is
dead, and when torchrun sends SIGTERM because one has ended. The lowest rank that is alive reports:
rank 0, unless its process is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import cast

import torch

from nanodoc.instrument.torch_private import PrefixStore, TCPStore
from nanodoc.net.board import Board, NoRendezvousError, connect
from nanodoc.net.checks import BEFORE_SPEED, LAST, Place
from nanodoc.net.facts import gather_facts
from nanodoc.net.judge import ALIVE, GONE, MISSING, SILENT, Seen, Setting, judge
from nanodoc.net.launch import Launch
from nanodoc.net.links import Door
from nanodoc.net.model import NetReport
from nanodoc.net.options import Options
from nanodoc.net.record import RankFacts, RankRecord
from nanodoc.net.worker import Worker

_POLL_SECONDS, _BEAT_SECONDS = 0.05, 0.5
_SILENT_SECONDS = 10.0  # twenty beats: loading CUDA or NCCL can hold Python's lock for seconds
# after the first rank that stopped, how long the others' own errors are waited for: no collective
# can end without that rank
_AFTERMATH_SECONDS = 2.0
_GOODBYE_SECONDS = 3.0
_TERMINATED_SECONDS = 10.0  # torchrun kills for good 30 s after its SIGTERM


class Supervisor:
    """One rank's part in the check."""

    def __init__(self, launch: Launch, options: Options, log: Callable[[], Sequence[str]]) -> None:
        self._launch, self._options, self._log = launch, options, log
        self._everyone = range(launch.world_size)
        self._drills = tuple(drill for drill in options.drills if drill.rank == launch.rank)
        # the last record of each rank, and when it changed, by our own clock
        self._sights: dict[int, tuple[RankRecord, float]] = {}
        self._ahead: dict[int, float] = {}
        self._began = self._beaten = 0.0
        self._first_stop: float | None = None
        self._plan: str | None = None
        self._published: RankRecord | None = None
        self._beat = 0
        self._pinning = threading.Lock()
        self._signal: int | None = None

    def run(self) -> NetReport | int:
        """The report where this rank is to print it, else the exit code that the reporter
        announced.

        Raises:
            NoRendezvousError: the store can't be reached, or is lost.
        """
        hosts = self._launch.rank == 0 and not self._launch.hosted
        self._store = connect(self._launch, self._options.timeout, host=hosts)
        self._board = Board(self._store, self._launch)
        for number in (signal.SIGTERM, signal.SIGINT):  # from here on there is something to report
            signal.signal(number, self._on_signal)
        door = Door()
        facts = gather_facts(self._launch, self._options.backend, door.port)
        if self._drilled("version"):
            facts = replace(facts, torch=f"{facts.torch}+drill")
        door.open(facts)
        self._worker = Worker(facts, self._pin_up)
        self._began = time.monotonic()
        try:
            return self._supervise()
        except (RuntimeError, OSError) as error:  # the store's errors
            raise NoRendezvousError(
                f"the store at {self._where()} was lost: {' '.join(str(error).split())[:200]}"
            ) from error

    def release(self, code: int) -> None:
        """Tells the others that the report is printed; waits a little until they know, for the
        store may end with this process."""
        # the store is gone, and with it those who would have read this
        with contextlib.suppress(RuntimeError):
            self._say_goodbye(code)

    def _say_goodbye(self, code: int) -> None:
        self._board.announce("printed", code)
        others = [
            rank for rank in self._everyone if rank != self._launch.rank and rank in self._sights
        ]
        deadline = time.monotonic() + _GOODBYE_SECONDS
        while time.monotonic() < deadline:
            others = [
                rank
                for rank in others
                if not self._is_gone(self._sights[rank][0].facts)
                and not self._board.announced(f"bye/{rank}")
            ]
            if not others:
                return
            time.sleep(_POLL_SECONDS)

    @property
    def interrupted(self) -> bool:
        return self._signal == signal.SIGINT

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = number

    def _drilled(self, kind: str) -> bool:
        return any(drill.kind == kind for drill in self._drills)

    def _where(self) -> str:
        return f"{self._launch.address}:{self._launch.port}"

    def _supervise(self) -> NetReport | int:
        terminated: float | None = None
        ready: float | None = None
        while True:
            self._publish()
            now = time.monotonic()
            terminated = terminated or (now if self._signal is not None else None)
            code = self._board.announced("printed")
            if code is not None:
                self._board.announce(f"bye/{self._launch.rank}", True)
                return int(cast(int, code))
            if self._is_reporter():
                report = self._as_reporter(terminated)
                if report is not None:
                    ready = ready or now
                    # one rank prints; where that one died before it could, the next does not wait
                    # for ever
                    if self._board.claim("reporter") or now - ready > _TERMINATED_SECONDS:
                        return report
            elif terminated is not None and now - terminated > _TERMINATED_SECONDS:
                return 1
            self._follow_plan()
            time.sleep(_POLL_SECONDS)

    def _publish(self) -> None:
        self._worker.give_up(self._options.timeout)
        record = self._worker.record
        now = time.monotonic()
        if record is not self._published or now - self._beaten >= _BEAT_SECONDS:
            self._published, self._beaten = record, now
            full = replace(record, log=tuple(self._log()) if record.settled else ())
            self._sights[self._launch.rank] = full, now
            self._pin_up(full)

    def _pin_up(self, record: RankRecord) -> None:
        """Publishes `record`, from either thread. Where the store is lost, the main thread notices
        by itself."""
        with self._pinning, contextlib.suppress(RuntimeError):
            self._beat += 1
            self._board.publish(replace(record, beat=self._beat, clock=time.time()))

    def _look(self, ranks: Sequence[int]) -> dict[int, Seen]:
        """What is known of `ranks` now."""
        now = time.monotonic()
        own = self._launch.rank
        for rank, record in self._board.read([rank for rank in ranks if rank != own]).items():
            if rank not in self._sights or self._sights[rank][0].beat != record.beat:
                self._sights[rank] = record, now
                ahead = record.clock - time.time()
                # a notice that lay there for a while looks like a clock that is behind: the
                # smallest difference counts
                self._ahead[rank] = min(self._ahead.get(rank, ahead), ahead, key=abs)
        return {rank: self._seen(rank, now) for rank in ranks}

    def _seen(self, rank: int, now: float) -> Seen:
        if rank not in self._sights:
            return Seen(state=MISSING)
        record, changed = self._sights[rank]
        silent = now - changed
        state = ALIVE
        if rank != self._launch.rank:
            state = (
                GONE
                if self._is_gone(record.facts)
                else SILENT
                if silent > _SILENT_SECONDS
                else ALIVE
            )
        return Seen(
            state=state, record=record, silent_for=silent, clock_ahead=self._ahead.get(rank, 0.0)
        )

    def _is_gone(self, facts: RankFacts) -> bool:
        """Its process ended, where that can be known: on this very machine."""
        own = self._worker.record.facts.machine
        return bool(own) and facts.machine == own and process_ended(facts.pid)

    def _is_reporter(self) -> bool:
        own = self._launch.rank
        if own == 0:
            return True
        first = self._look([0])[0]
        if first.state == ALIVE or (
            first.state == MISSING and time.monotonic() - self._began < self._options.timeout + 1
        ):
            return False
        below = self._look(range(own))
        return all(entry.state != ALIVE for entry in below.values())

    def _as_reporter(self, terminated: float | None) -> NetReport | None:
        """The report, once there is nothing more to wait for."""
        seen = self._look(self._everyone)
        now = time.monotonic()
        states = [entry.state for entry in seen.values()]
        if (
            self._plan is None
            and self._launch.rank == 0
            and all(state == ALIVE for state in states)
        ):
            self._announce_plan(
                [entry.record.facts for entry in seen.values() if entry.record is not None]
            )
        if MISSING in states:
            if terminated is None and now - self._began <= self._options.timeout:
                return None
            return self._judged(seen, terminated)
        stopped = [
            entry.state != ALIVE or (entry.record is not None and entry.record.stopped)
            for entry in seen.values()
        ]
        settled = [
            entry.state != ALIVE or (entry.record is not None and entry.record.settled)
            for entry in seen.values()
        ]
        if any(stopped) and self._first_stop is None:
            self._first_stop = now
        since = min(
            (moment for moment in (self._first_stop, terminated) if moment is not None),
            default=None,
        )
        if all(settled) or (since is not None and now - since > _AFTERMATH_SECONDS):
            return self._judged(seen, terminated)
        return None

    def _judged(self, seen: dict[int, Seen], terminated: float | None) -> NetReport:
        remark = None
        if self._launch.rank != 0:
            remark = f"rank {self._launch.rank} reports because rank 0 can't"
        elif terminated is not None and all(entry.state == ALIVE for entry in seen.values()):
            remark = "ended by a signal before the checks finished"
        names = (
            *(check.name for check in BEFORE_SPEED),
            "latency",
            *(f"bandwidth {size / 2**20:g} MiB" for size in self._options.sizes),
            LAST.name,
        )
        setting = Setting(
            checks=names,
            backend=self._plan,
            timeout=self._options.timeout,
            address=self._where(),
            verbose=self._options.verbose,
            remark=remark,
        )
        return judge(seen, setting)

    def _announce_plan(self, facts: Sequence[RankFacts]) -> None:
        """NCCL where every rank has a GPU of its own, else gloo; as rank 0 says, so that all
        agree."""
        gpus = [(fact.host, fact.device_id) for fact in facts if fact.device_id is not None]
        own = len(gpus) == len(facts) == len(set(gpus)) and torch.distributed.is_nccl_available()
        self._board.announce("plan", self._options.backend or ("nccl" if own else "gloo"))

    def _follow_plan(self) -> None:
        """Starts the checks once rank 0 has said how, which it does when all have arrived."""
        if self._plan is not None:
            return
        plan = self._board.announced("plan")
        if plan is None:
            return
        self._plan = str(plan)
        everyone = {rank: entry.facts for rank, entry in self._board.read(self._everyone).items()}
        store = PrefixStore(f"nanodoc-net-group/{self._launch.attempt}", self._group_store())
        device = torch.device(everyone[self._launch.rank].device if self._plan == "nccl" else "cpu")
        place = Place(
            rank=self._launch.rank,
            world_size=self._launch.world_size,
            backend=self._plan,
            device=device,
            everyone=everyone,
            store=store,
            timeout=self._options.timeout,
            drills=self._drills,
        )
        self._worker.start(place, self._options.sizes)

    def _group_store(self) -> TCPStore:
        """A second connection: one that waits for a key would block the notices."""
        return connect(self._launch, self._options.timeout)


def process_ended(pid: int) -> bool:
    """There is no such process, or only its corpse, which its parent has not collected yet."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return True
        try:
            os.kill(pid, 0)  # sends nothing: it only asks
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
    except OSError:
        return False
    return status.rpartition(")")[2].split()[:1] in (["Z"], ["X"])
