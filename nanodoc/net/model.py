"""The result of a communication check as one frozen object; `report/net.py` renders it. Nothing
here imports torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from nanodoc._version import __version__
from nanodoc.net.record import RankFacts, Speed

OK, FAILED, WAITED, NOTE, NOT_REACHED = "OK", "FAILED", "waited", "note", "not reached"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOutcome:
    """One rank: OK, FAILED, or waited (it did its part, and another rank did not answer)."""

    rank: int
    state: str
    text: str
    facts: RankFacts | None = None
    last_seen: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckOutcome:
    """One check over all ranks: the seconds of the quickest rank (that which came last) and of the
    slowest (that which waited)."""

    name: str
    state: str
    quickest: float | None = None
    slowest: float | None = None
    ranks_through: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something to know beside the table: FAILED, or a note that fails nothing; `help` proposes
    what to do."""

    state: str
    text: str
    help: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NetReport:
    """Everything that `nanodoc net` says."""

    world_size: int
    backend: str | None
    timeout: float
    address: str
    ranks: tuple[RankOutcome, ...]
    checks: tuple[CheckOutcome, ...]
    problems: tuple[Problem, ...]
    speeds: tuple[Speed, ...]
    log: tuple[str, ...] = ()
    verbose: bool = False
    nanodoc: str = __version__

    @property
    def healthy(self) -> bool:
        return all(rank.state == OK for rank in self.ranks) and all(
            problem.state != FAILED for problem in self.problems
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(rank.facts.host for rank in self.ranks if rank.facts is not None)
        )

    def as_dict(self) -> dict[str, Any]:
        """The public JSON, schema 1: fields that don't apply are null, lists are empty, never
        absent."""
        speeds = [
            {
                "bytes": speed.size,
                "seconds": speed.seconds,
                "algorithm_bandwidth": speed.algorithm_bandwidth,
                "bus_bandwidth": speed.bus_bandwidth(self.world_size),
            }
            for speed in self.speeds
        ]
        return {
            "schema": SCHEMA,
            "nanodoc": self.nanodoc,
            "verdict": "healthy" if self.healthy else "failed",
            "world_size": self.world_size,
            "hosts": list(self.hosts),
            "backend": self.backend,
            "timeout": self.timeout,
            "master": self.address,
            "ranks": [asdict(rank) for rank in self.ranks],
            "checks": [asdict(check) for check in self.checks],
            "problems": [asdict(problem) for problem in self.problems],
            "all_reduce": speeds,
            "log": list(self.log),
        }
