"""The ranks of one distributed run, seen from one rank's parent: what the others write down, when
to stop waiting, and the report of all.

Parents talk through files in a folder that all of them see (the artifacts' folder): they import no
torch, and outlive whatever happens to the ranks' own connections.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nanodoc.facts.ranks import DIED, FAILED, LOST, SICK, WELL, RankOutcome
from nanodoc.heartbeat.trail import EXAMINATION, START, Trail
from nanodoc.report.report import Report
from nanodoc.supervise.wire import WireError, opened, packed

_BEAT = 0.5  # seconds between two signs of life
_SILENT = 15.0  # seconds without one, after which a rank's parent is gone
_GRACE = 5.0  # seconds a rank may stand still once another has failed: then it only waits for it
_ARRIVAL = 60.0  # seconds within which every rank must have shown itself
_ALONE = 6.0  # the same for a rank that is in no group: launchers start all ranks at once


@dataclass(slots=True)
class Seen:
    """What this rank knows of another. `at` is when it was last heard of, by our own clock."""

    state: Mapping[str, object] = field(default_factory=dict)
    outcome: RankOutcome | None = None
    report: Report | None = None
    at: float = field(default_factory=time.monotonic)


class Ranks:
    """One rank's view of the run. `mine` is this rank's number."""

    def __init__(self, mine: int, size: int, folder: Path, run: str) -> None:
        self.mine = mine
        self.size = size
        self._folder = folder / f".nanodoc-ranks-{run}"
        self._others = {rank: Seen() for rank in range(size) if rank != mine}
        self._began = time.monotonic()
        self._beaten = 0.0
        self._arrival = _ARRIVAL
        self._moved = time.monotonic()
        self._place: tuple[object, ...] = ()
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file("done", mine).unlink(missing_ok=True)
            self._file("end", mine).unlink(missing_ok=True)
        except OSError as error:
            self.trouble: str | None = f"{self._folder}: {error.strerror or error}"
        else:
            self.trouble = None

    @classmethod
    def here(cls, folder: Path) -> Ranks | None:
        """The ranks that a launcher (torchrun) has told this process of; None where it is the only
        one."""
        try:
            mine, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        except (KeyError, ValueError):
            return None
        if size < 2:
            return None
        names = (
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "SLURM_JOB_ID",
        )
        told = [os.environ.get(name, "") for name in names]
        # one agent started all: its number tells two runs apart
        if os.environ.get("LOCAL_WORLD_SIZE") == str(size):
            told.append(str(os.getppid()))
        return cls(
            mine, size, folder, hashlib.blake2b("|".join(told).encode(), digest_size=6).hexdigest()
        )

    # -- while the rank runs -----------------------------------------------------------------------

    def beat(self, trail: Trail) -> str | None:
        """To be called often: says where this rank is. Gives the reason where it only waits for a
        rank that has failed."""
        now = time.monotonic()
        place = (trail.step, trail.phase, trail.finished, trail.signs)
        if place != self._place:
            self._place, self._moved = place, now
        if now - self._beaten < _BEAT:
            return None
        self._beaten = now
        self._write(
            "state",
            {
                "step": trail.step,
                "phase": trail.phase,
                "finished": trail.finished,
                "host": socket.gethostname(),
                "at": time.time(),
            },
        )
        self._look()
        if trail.phase in (START, EXAMINATION):
            return None
        still = now - self._moved
        over = [seen.outcome for seen in self._others.values() if seen.outcome is not None]
        # one that stands still itself may be waiting for us: that is for --timeout to tell
        failed = [outcome for outcome in over if outcome.ended in (SICK, FAILED, DIED)]
        if failed and still > _GRACE:
            return f"waited for rank {min(outcome.rank for outcome in failed)}"
        through = [
            outcome
            for outcome in over
            if outcome.ended == WELL and outcome.wrapped and outcome.steps <= (trail.step or 0)
        ]
        if through and trail.phase == "backward" and still > 3 * _GRACE:
            return (
                f"waited for rank {through[0].rank}, which was through after {through[0].steps} "
                "steps"
            )
        return None

    # -- when it has ended -------------------------------------------------------------------------

    def settle(
        self, outcome: RankOutcome, report: Report
    ) -> list[tuple[RankOutcome, Report | None]] | None:
        """Tells the others how this rank ended. For the rank that reports, every rank's outcome and
        report, in order; None for the others, once it has been printed."""
        # nothing says that there are others at all
        if report.of_rank is None or not report.of_rank.grouped:
            self._arrival = _ALONE
        self._write("end", (outcome, report))
        while True:
            self._write("state", {"ended": True, "at": time.time(), "host": socket.gethostname()})
            self._look()
            if self._reports():
                if all(
                    seen.outcome is not None or self._lost(seen) for seen in self._others.values()
                ):
                    return self._all(outcome, report)
            elif self._printed():
                return None
            time.sleep(0.1)

    def printed(self) -> None:
        """The merged report is out."""
        self._write("done", True)
        deadline = time.monotonic() + 2 * _BEAT + 1
        while time.monotonic() < deadline and not all(
            self._file("seen", rank).exists() for rank in self._others
        ):
            time.sleep(0.05)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reports(self) -> bool:
        """The lowest rank that is still there makes the report."""
        return all(
            self._lost(seen) and seen.outcome is None
            for rank, seen in self._others.items()
            if rank < self.mine
        )

    def _printed(self) -> bool:
        lower = [rank for rank in self._others if rank < self.mine]
        if any(self._file("done", rank).exists() for rank in lower) or not self._folder.exists():
            self._write("seen", True)
            return True
        return False

    def _lost(self, seen: Seen) -> bool:
        return time.monotonic() - seen.at > (_SILENT if seen.state else self._arrival)

    def _all(self, outcome: RankOutcome, report: Report) -> list[tuple[RankOutcome, Report | None]]:
        found: list[tuple[RankOutcome, Report | None]] = [(outcome, report)]
        for rank, seen in self._others.items():
            found.append((seen.outcome or _missing(rank, seen), seen.report))
        return sorted(found, key=lambda pair: pair[0].rank)

    # -- files -------------------------------------------------------------------------------------

    def _file(self, kind: str, rank: int) -> Path:
        return self._folder / f"{kind}-{rank}"

    def _write(self, kind: str, content: object) -> None:
        """Whole or not at all. A folder that cannot be written to leaves the ranks without each
        other, never without their own report."""
        path = self._file(kind, self.mine)
        data = packed(kind, content)[4:] if kind == "end" else json.dumps(content).encode()
        try:
            temporary = path.with_name(path.name + f".{os.getpid()}")
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except (OSError, pickle.PicklingError) as error:
            self.trouble = self.trouble or f"{path}: {error}"

    def _look(self) -> None:
        for rank, seen in self._others.items():
            state = self._read_state(rank)
            if state is not None and state != seen.state:
                seen.state, seen.at = state, time.monotonic()
            if seen.outcome is None and self._file("end", rank).exists():
                try:
                    kind, value = opened(self._file("end", rank).read_bytes())
                except (OSError, WireError):
                    continue
                if kind == "end" and isinstance(value, tuple) and isinstance(value[0], RankOutcome):
                    seen.outcome, seen.report, seen.at = value[0], value[1], time.monotonic()

    def _read_state(self, rank: int) -> Mapping[str, object] | None:
        try:
            state = json.loads(self._file("state", rank).read_text())
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) else None


def _missing(rank: int, seen: Seen) -> RankOutcome:
    if not seen.state:
        return RankOutcome(
            rank=rank,
            ended=LOST,
            why="it never showed itself: not started, or without a folder in common",
        )
    step, finished = seen.state.get("step"), seen.state.get("finished")
    return RankOutcome(
        rank=rank,
        host=str(seen.state.get("host", "")),
        ended=LOST,
        step=step if isinstance(step, int) else None,
        phase=str(seen.state.get("phase", "")),
        steps=finished if isinstance(finished, int) else 0,
        why="its whole process group is gone: killed from outside, or its machine",
    )
