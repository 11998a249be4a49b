"""`--drill RANK:KIND[@CHECK]`: a rank that fails on purpose, to rehearse what a failure looks like
(and to test that it is named)."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from nanodoc.errors import UsageError

CHECKS = (
    "device",
    "links",
    "connect",
    "barrier",
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "ring",
    "latency",
    "bandwidth",
)
KINDS = ("die", "hang", "slow", "wrong", "version")
_CHECKED_VALUES = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "ring")
_SLOW_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Drill:
    """What is to go wrong, on which rank, before which check."""

    rank: int
    kind: str
    check: str

    def before(self, check: str) -> None:
        """Fails as asked where this is the check: the process is killed, waits for ever or waits a
        second."""
        if check != self.check:
            return
        if self.kind == "die":
            # no goodbye: as by the kernel's out-of-memory killer
            os.kill(os.getpid(), signal.SIGKILL)
        while self.kind == "hang":
            time.sleep(60)
        if self.kind == "slow":
            time.sleep(_SLOW_SECONDS)

    def falsifies(self, check: str) -> bool:
        """This rank sends other numbers than it should in `check`."""
        return self.kind == "wrong" and check == self.check


def read_drill(text: str, world_size: int | None) -> Drill:
    """The drill that `--drill` asks for.

    Raises:
        UsageError: the text is not RANK:KIND[@CHECK], or there is no such rank, kind or check.
    """
    rank, colon, rest = text.partition(":")
    kind, at, check = rest.partition("@")
    if not colon or not rank.isdecimal():
        raise UsageError(f"--drill {text!r} is not RANK:KIND[@CHECK], such as 1:hang@barrier")
    if kind not in KINDS:
        raise UsageError(f"--drill {text!r}: no kind {kind!r}; one of {', '.join(KINDS)}")
    if kind == "version" and at:
        raise UsageError(f"--drill {text!r}: version belongs to no check; leave out @{check}")
    allowed = _CHECKED_VALUES if kind == "wrong" else CHECKS
    if at and check not in allowed:
        raise UsageError(
            f"--drill {text!r}: no check {check!r} for {kind}; one of {', '.join(allowed)}"
        )
    if world_size is not None and int(rank) >= world_size:
        raise UsageError(f"--drill {text!r}: there are {world_size} ranks, 0 to {world_size - 1}")
    return Drill(rank=int(rank), kind=kind, check=check or "all_reduce")
