"""Whether a step that was run again did what it had done the first time."""

from __future__ import annotations

import math

from nanodoc.replay.traced_replay import Replay
from nanodoc.trace.graph import StepTrace


def same_ops(first: StepTrace, second: StepTrace, wanted: set[int]) -> bool:
    """Two traces of a step ran as many ops, and the same ones at the indices `wanted`."""
    if len(first.records) != len(second.records):
        return False
    return all(first.records[i].info.name == second.records[i].info.name for i in wanted)


def reproduced(replay: Replay, loss: float | None, grad_norm: float | None) -> tuple[str, str]:
    """Whether the replay met the loss and gradient norm of the first run ("bitwise", "tolerance" or
    "no"), and a note on how far apart they are. A `loss` of None stands for an exception."""
    if loss is None:
        return (
            ("bitwise", "")
            if replay.error is not None
            else ("no", "the exception was not raised again")
        )
    again = sum(replay.losses) / len(replay.losses) if replay.losses else math.nan
    pairs = [(again, loss)] + ([(replay.grad_norm, grad_norm)] if grad_norm is not None else [])
    if all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs):
        return "bitwise", ""
    if all(_near(a, b) for a, b in pairs):
        return "tolerance", f"loss {again:.9g} in the replay, {loss:.9g} in the run"
    return "no", f"loss {again:.9g} in the replay, {loss:.9g} in the run"


def _near(a: float, b: float) -> bool:
    if not (math.isfinite(a) and math.isfinite(b)):
        return math.isfinite(a) == math.isfinite(b)
    return abs(a - b) <= 1e-3 * max(abs(a), abs(b), 1e-12)
