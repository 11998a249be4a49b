"""One op as the tracer records it."""

from __future__ import annotations

from types import CodeType
from typing import NamedTuple

from nanodoc.facts.ops import OpPhase
from nanodoc.trace.ops import OpInfo

FORWARD: OpPhase = "forward"
BACKWARD: OpPhase = "backward"
RECOMPUTE: OpPhase = "recompute"
OPTIMIZER: OpPhase = "optimizer"

# The state of a storage as an op saw it: its writers' list and how many had written by then.
Ref = tuple[list[int], int]


class Record(NamedTuple):
    """One op call. `inputs` follow the order of the tensor arguments, lists flattened."""

    info: OpInfo
    inputs: tuple[Ref, ...]
    phase: OpPhase
    node: str | None
    sequence: int
    """What an op and the autograd node it made, or runs for, have in common (`trace.threads`)."""
    module: int
    place: tuple[CodeType, int] | None
    caller: tuple[CodeType, int] | None
    statistic: int
    """Index of its first statistic, −1 when it has none."""
    statistics: int
    overwrites: bool
    """A write that covers the whole storage: what was there before is gone."""
    thread: int = 0
    """0 is the thread that the trace was begun in; autograd runs the backward of an accelerator in
    others."""


RUNNING = Record(
    OpInfo("running", False, (), False, True), (), FORWARD, None, -1, -1, None, None, 0, 0, False
)
"""In the place of an op that has begun and not yet returned."""
