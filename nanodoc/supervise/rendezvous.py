"""The ranks of one distributed run, seen from one rank's parent: what the others write down, when
to stop waiting, and the report of all.

Parents talk through files in a folder that all of them see (the artifacts' folder): they import no
torch, and outlive whatever happens to the ranks' own connections. While all train, each of them
looks into one folder that is empty; at the end each group of ranks is gathered by its first, and
the groups by the first of all.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanodoc.artifacts import make_folder
from nanodoc.facts.ranks import CLEAN, DIED, FAILED, LOST, SICK, WELL, RankOutcome
from nanodoc.heartbeat.trail import EXAMINATION, START, Trail, TrailWriter
from nanodoc.report.report import Report
from nanodoc.supervise.gathering import GROUP, Gathered, Pair, bounded
from nanodoc.supervise.wire import WireError, opened, packed

_BEAT = 0.5  # seconds between two signs of life
_LOOKS = 5.0  # seconds between two looks for those of the own group
_SILENT = 15.0  # seconds without one, after which a rank's parent is gone
_REPORTING = 60.0  # the same for one that has told how it ended
_GRACE = 5.0  # seconds a rank may stand still once another has failed: then it only waits for it
_ARRIVAL = 60.0  # seconds within which every rank must have shown itself
_ALONE = 6.0  # the same for a rank that is in no group: launchers start all ranks at once


@dataclass(slots=True)
class Seen:
    """What this rank knows of another. `at` is when it was last heard of, by our own clock."""

    state: Mapping[str, object] = field(default_factory=dict)
    told: Pair | None = None
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Over:
    """What the name of a file says of a rank that has ended."""

    rank: int
    ended: str
    steps: int
    wrapped: bool


class Ranks:
    """One rank's view of the run. `mine` is this rank's number."""

    def __init__(self, mine: int, size: int, folder: Path, run: str) -> None:
        self.mine = mine
        self.size = size
        self._folder = folder / f".nanodoc-ranks-{run}"
        first = mine - mine % GROUP
        self._group = {rank: Seen() for rank in range(first, min(first + GROUP, size))}
        del self._group[mine]
        self._beyond: dict[int, Seen] = {}
        """Ranks of other groups, where nobody gathers these."""
        self._pause = 0.1 * max(1.0, size / (4 * GROUP))
        """Seconds between two looks at what the others have told: a file system is shared, too."""
        self._looked = 0.0
        self._beaten = 0.0
        self._arrival = _ARRIVAL
        self._moved = time.monotonic()
        self._place: tuple[object, ...] = ()
        try:
            make_folder(folder)
            for kind in ("over", "done", "seen"):
                (self._folder / kind).mkdir(parents=True, exist_ok=True)
            self._file("end", mine).unlink(missing_ok=True)
            self._file("group", mine // GROUP).unlink(missing_ok=True)
            (self._folder / "done" / str(mine)).unlink(missing_ok=True)
            for left in (self._folder / "over").glob(f"{mine}.*"):
                left.unlink(missing_ok=True)
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

    def beat(self, trail: Trail, crumbs: TrailWriter) -> str | None:
        """To be called often: says where this rank is, and tells it on its page of another one that
        has left a step. Gives the reason where it only waits for a rank that has failed."""
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
        if now - self._looked > _LOOKS or trail.asked is not None:
            self._looked = now
            for rank, seen in self._group.items():
                self._look(rank, seen)
        if trail.asked is not None and self._left(trail.asked):
            crumbs.answer(trail.asked)
        if trail.phase in (START, EXAMINATION):
            return None
        still = now - self._moved
        over = self._over()
        # one that stands still itself may be waiting for us: that is for --timeout to tell
        failed = [one.rank for one in over if one.ended in (SICK, CLEAN, FAILED, DIED)]
        if failed and still > _GRACE:
            return f"waited for rank {min(failed)}"
        through = [
            one
            for one in over
            if one.ended == WELL and one.wrapped and one.steps <= (trail.step or 0)
        ]
        if through and trail.phase == "backward" and still > 3 * _GRACE:
            return (
                f"waited for rank {through[0].rank}, which finished after {through[0].steps} steps"
            )
        return None

    def _left(self, step: int) -> bool:
        """Another rank of the group is in a later step, or has ended."""
        for seen in self._group.values():
            there = seen.state.get("step")
            if seen.state.get("ended") or (isinstance(there, int) and there > step):
                return True
        return False

    def _over(self) -> list[_Over]:
        """The ranks that have ended, the lowest first."""
        found = []
        for name in self._names("over"):
            parts = name.split(".")
            if len(parts) == 4 and parts[0].isdecimal() and parts[2].isdecimal():
                found.append(_Over(int(parts[0]), parts[1], int(parts[2]), parts[3] == "1"))
        return sorted((one for one in found if one.rank != self.mine), key=lambda one: one.rank)

    # -- when it has ended -------------------------------------------------------------------------

    def settle(self, outcome: RankOutcome, report: Report) -> list[Pair] | None:
        """Tells the others how this rank ended. For the rank that reports, every rank's outcome and
        what it found, in order; None for the others, once it has been printed."""
        # nothing says that there are others at all
        if report.of_rank is None or not report.of_rank.grouped:
            self._arrival = _ALONE
        self.tell(outcome, report)
        groups: dict[int, list[Pair]] = {}
        own = self.mine // GROUP
        while True:
            self.still_there()
            if self.mine and self._printed():
                return None
            for rank, seen in self._group.items():
                self._look(rank, seen)
                self._hear(rank, seen)
            if self._leads():
                if own not in groups and self._all_told():
                    mine = Seen({}, (outcome, report))
                    groups[own] = self._gathered({**self._group, self.mine: mine})
                    if self.size > GROUP:
                        self._write_file(self._file("group", own), packed("group", groups[own])[4:])
                if own in groups and self._is_first() and self._all_there(groups):
                    return self._all(groups)
            time.sleep(self._pause)

    def still_there(self) -> None:
        """The rank has ended, and its parent has not. To be called often until the report is
        printed."""
        self._write("state", {"ended": True, "at": time.time(), "host": socket.gethostname()})

    def tell(self, outcome: RankOutcome, report: Report) -> None:
        """That this rank has ended, and how: whole, before its name says that it is there."""
        self._write_file(self._file("end", self.mine), bounded(outcome, report)[4:])
        said = f"{self.mine}.{outcome.ended}.{outcome.steps}.{int(outcome.wrapped)}"
        self._write_file(self._folder / "over" / said, b"")

    def printed(self) -> None:
        """The merged report is out."""
        self._write_file(self._folder / "done" / str(self.mine), b"")
        deadline = time.monotonic() + 2 * _BEAT + 1
        while time.monotonic() < deadline and len(self._names("seen")) < self.size - 1:
            time.sleep(0.05)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _leads(self) -> bool:
        """The lowest rank of its group that is still there."""
        return all(self._lost(seen) for rank, seen in self._group.items() if rank < self.mine)

    def _all_told(self) -> bool:
        """Those of its group have said how they ended, or nothing for long."""
        return all(seen.told is not None or self._lost(seen) for seen in self._group.values())

    def _is_first(self) -> bool:
        """Nobody of the groups before this one is there."""
        return all(self._is_gone(group) for group in range(self.mine // GROUP))

    def _all_there(self, groups: dict[int, list[Pair]]) -> bool:
        """Every group is gathered, by its own first rank or, where nobody of it is left, by us."""
        for group in range(math.ceil(self.size / GROUP)):
            if group in groups:
                continue
            found = self._opened(self._file("group", group), "group")
            if isinstance(found, list):
                groups[group] = found
            elif self._is_gone(group):
                gone = {rank: self._beyond[rank] for rank in self._ranks_of(group)}
                for rank, seen in gone.items():
                    self._hear(rank, seen)
                groups[group] = self._gathered(gone)
            else:
                return False
        return True

    def _is_gone(self, group: int) -> bool:
        """No rank of a group has given a sign of life for long."""
        watched = {rank: self._beyond.setdefault(rank, Seen()) for rank in self._ranks_of(group)}
        for rank, seen in watched.items():
            self._look(rank, seen)
            if not self._lost(seen):
                return False
        return True

    def _ranks_of(self, group: int) -> range:
        return range(group * GROUP, min((group + 1) * GROUP, self.size))

    def _printed(self) -> bool:
        done = any(int(n) < self.mine for n in self._names("done") if n.isdecimal())
        if done or not self._folder.exists():
            self._write_file(self._folder / "seen" / str(self.mine), b"")
            return True
        return False

    def _lost(self, seen: Seen) -> bool:
        patience = _SILENT if seen.state else self._arrival
        if seen.state.get("ended"):  # it may be making the report
            patience = _REPORTING
        return time.monotonic() - seen.at > patience

    def _gathered(self, ranks: Mapping[int, Seen]) -> list[Pair]:
        found = Gathered()
        for rank, seen in sorted(ranks.items()):
            found.add(*(seen.told or (_missing(rank, seen), None)))
            seen.told = seen.told and (seen.told[0], None)  # what it holds is kept once
        return found.pairs()

    def _all(self, groups: Mapping[int, list[Pair]]) -> list[Pair]:
        found = Gathered()
        for _, pairs in sorted(groups.items()):
            for pair in pairs:
                found.add(*pair)
        return found.pairs()

    # -- files -------------------------------------------------------------------------------------

    def _file(self, kind: str, rank: int) -> Path:
        return self._folder / f"{kind}-{rank}"

    def _names(self, kind: str) -> list[str]:
        try:
            return os.listdir(self._folder / kind)
        except OSError:  # the report is out, and the folder gone
            return []

    def _write(self, kind: str, content: object) -> None:
        self._write_file(self._file(kind, self.mine), json.dumps(content).encode())

    def _write_file(self, path: Path, data: bytes) -> None:
        """Whole or not at all. A folder that cannot be written to leaves the ranks without each
        other, never without their own report."""
        try:
            temporary = self._folder / f"{path.name}.{os.getpid()}"
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except OSError as error:
            self.trouble = self.trouble or f"{path}: {error}"

    def _look(self, rank: int, seen: Seen) -> None:
        """Its sign of life."""
        state = self._read_state(rank)
        if state is not None and state != seen.state:
            seen.state, seen.at = state, time.monotonic()

    def _hear(self, rank: int, seen: Seen) -> None:
        """How it ended, once it has said so."""
        if seen.told is None:
            told = self._opened(self._file("end", rank), "end")
            if isinstance(told, tuple) and isinstance(told[0], RankOutcome):
                seen.told, seen.at = told, time.monotonic()

    def _opened(self, path: Path, wanted: str) -> Any:
        """What a file of a kind holds; None where it is not there yet."""
        try:
            kind, value = opened(path.read_bytes())
        except (OSError, WireError):
            return None
        return value if kind == wanted else None

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
            why="it never reported: it was not started or shares no folder with the other ranks",
        )
    step, finished = seen.state.get("step"), seen.state.get("finished")
    return RankOutcome(
        rank=rank,
        host=str(seen.state.get("host", "")),
        ended=LOST,
        step=step if isinstance(step, int) else None,
        phase=str(seen.state.get("phase", "")),
        steps=finished if isinstance(finished, int) else 0,
        why="its whole process group is gone: it was killed or its machine failed",
    )
