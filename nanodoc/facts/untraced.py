"""A sick step of a script that could not be run again, as a second run of the script has to meet it
again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NOT_REPRODUCED = "not-reproduced"
"""The name of the finding that tells of such a step."""
_NATIVE = ("psycopg2", "psycopg", "MySQLdb", "mysql", "pyodbc", "oracledb", "zmq", "mpi4py")
"""Clients of databases and of messages. They reach a server of the same machine by files, pipes or
shared memory."""
_ON_CPU = 64 * 2**-23
"""64 units in the last place of float32, as two runs of one step may be apart (see
`script.fingerprint`). Most trainings on a CPU come to the same, bit by bit; one whose rounding
grows from step to step is soon further apart than this, and counts as another course."""
_ELSEWHERE = 1e-2
"""As of steps that are run again one after the other on an accelerator (see `loop.brief_steps`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Untraced:
    """What the first run knows of the step and of the way to it."""

    training: int
    """Which of the script's trainings it belongs to, from 0."""
    step: int
    """Its number in that training."""
    steps: int
    """How many steps the script had made with it, those of earlier trainings among them."""
    losses: tuple[float, ...]
    """Those of the training's steps before it."""
    rounding: float
    """How far apart, relative, two losses may be that differ for rounding alone."""

    compiled: bool = False
    """`torch.compile` made a part of it, which runs eagerly where it is traced."""

    sends_by: str = ""
    """A module that the script has imported and that speaks to other processes by native code, over
    what the kernel can't be asked to close."""

    @property
    def known(self) -> bool:
        """Steps before it tell whether a second run is the same."""
        return len(self.losses) == self.step > 0

    def parted_at(self, losses: Sequence[float], begin: int = 0) -> int | None:
        """The first step, from `begin` on, whose loss is not the one that is known but for
        rounding; None where `losses` are the same as far as they go."""
        for step in range(begin, min(len(losses), len(self.losses))):
            now, then = losses[step], self.losses[step]
            left_out = math.isnan(now) and math.isnan(then)  # a batch, in both
            if not (left_out or math.isclose(now, then, rel_tol=self.rounding)):
                return step
        return None


def sending_one(modules: Iterable[str]) -> str:
    """The first of the imported modules that a second run can't be kept from sending by; "" where
    there is none."""
    imported = set(modules)
    return next((name for name in _NATIVE if name in imported), "")


def rounding_on(device: str) -> float:
    """How far apart, relative, losses may be on a device of this type."""
    return _ON_CPU if device == "cpu" else _ELSEWHERE
