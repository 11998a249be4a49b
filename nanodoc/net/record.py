"""What every rank says about itself in the store, as JSON that another version of nanodoc can read,
too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

RAISED, NO_ANSWER, WRONG = "raised", "no answer", "wrong"


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """Where a rank runs and with what; "" or None where it could not be found out."""

    rank: int = -1
    host: str = "unknown"
    pid: int = 0
    machine: str = ""  # equal for processes that see each other's pids
    nanodoc: str = "unknown"
    torch: str = "unknown"
    python: str = "unknown"
    cuda: str | None = None
    nccl: str | None = None
    device: str = "cpu"
    device_name: str | None = None
    device_id: str | None = None
    device_error: str | None = None  # why there is a GPU that can't be used
    # of the interface towards MASTER_ADDR, or of the one that was asked for
    address: str | None = None
    interface: str | None = None
    network: str | None = None
    resolves_to: str | None = None  # what the host's own name resolves to there
    interfaces: tuple[str, ...] = ()  # the names of all that have an address
    asked_interfaces: Mapping[str, str] = field(default_factory=dict)
    port: int = 0  # where the other ranks try a connection


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckDone:
    """One check that a rank went through: how long it took, and how late the rank was (seconds
    since all had last met)."""

    name: str = ""
    seconds: float = 0.0
    late: float | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """What went wrong on a rank; `kind` is "raised", "no answer" or "wrong" (it ended, but with
    other numbers than it should)."""

    check: str = ""
    kind: str = RAISED
    text: str = ""
    entered: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """The median time of one all_reduce of `size` bytes; None where it would have taken too
    long."""

    size: int = 0
    seconds: float | None = None

    @property
    def algorithm_bandwidth(self) -> float | None:
        """Bytes a second as the caller sees them."""
        return self.size / self.seconds if self.seconds else None

    def bus_bandwidth(self, world_size: int) -> float | None:
        """Bytes a second over the slowest link: times 2(n−1)/n, for an all_reduce moves each byte
        that often (nccl-tests, PERFORMANCE.md). It does not depend on the number of ranks, so it
        can be compared with what the hardware should give."""
        bandwidth = self.algorithm_bandwidth
        return bandwidth * 2 * (world_size - 1) / world_size if bandwidth is not None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRecord:
    """The state of a rank; it is written anew at least twice a second, so that a rank that stops
    writing is known to be silent."""

    facts: RankFacts
    current: str | None = None
    entered: bool = False
    done: tuple[CheckDone, ...] = ()
    failures: tuple[Failure, ...] = ()
    stopped: bool = False  # no further check will be run here
    finished: bool = False
    speeds: tuple[Speed, ...] = ()
    log: tuple[str, ...] = ()
    clock: float = 0.0  # time.time() of the writer
    beat: int = 0

    @property
    def settled(self) -> bool:
        return self.finished or self.stopped

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> RankRecord:
        """Fields that this version doesn't know are left out, those that are missing get their
        defaults."""
        raw = json.loads(text)
        known = _known(cls, raw)
        for name, kind in (("done", CheckDone), ("failures", Failure), ("speeds", Speed)):
            known[name] = tuple(kind(**_known(kind, item)) for item in raw.get(name, ()))
        known["log"] = tuple(raw.get("log", ()))
        facts = _known(RankFacts, raw.get("facts", {}))
        known["facts"] = RankFacts(**{**facts, "interfaces": tuple(facts.get("interfaces", ()))})
        return cls(**known)


def _known(kind: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in raw.items() if key in names}
