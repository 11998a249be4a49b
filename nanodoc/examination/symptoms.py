"""Where the search for the roots of a sick step begins: its losses, its gradients, what it sent to
other ranks, or what the code had just read when it raised."""

from __future__ import annotations

import math

from nanodoc.replay.traced_replay import PROBE_MARK, Replay
from nanodoc.trace.collectives import SENT_MARK
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.record import Ref

_BEFORE_EXCEPTION = 16  # ops whose inputs count as what the code had just looked at


def symptoms(replay: Replay, loss_is_finite: bool) -> list[Ref]:
    """The memory in which a step that was run again shows that it is sick."""
    marks = replay.trace.marks
    if replay.error is not None:
        return late_symptoms(replay.trace)
    if not loss_is_finite:
        losses = enumerate(replay.losses)
        return [marks[f"loss:{number}"] for number, loss in losses if not math.isfinite(loss)]
    if replay.bad_parameters:
        return [marks[f"grad:{name}"] for name in replay.bad_parameters]
    probes = [ref for name, ref in marks.items() if name.startswith(PROBE_MARK)]
    return [ref for ref in probes if _is_bad(replay.trace, ref)]


def sent_by(replay: Replay, loss_is_finite: bool) -> list[Ref]:
    """Where the loss is finite: what was not when this rank gave it to others, in its backward pass
    or after it."""
    if not loss_is_finite:
        return []
    return [ref for name, ref in replay.trace.marks.items() if name.startswith(SENT_MARK)]


def late_symptoms(trace: StepTrace) -> list[Ref]:
    """What the last ops before an exception read and found non-finite: the values that may have
    made the code raise."""
    last = trace.records[-_BEFORE_EXCEPTION:]
    return [ref for record in last for ref in record.inputs if _is_bad(trace, ref)]


def loss_is_finite_in(replay: Replay) -> bool:
    """The losses are finite, or gradients were sick before the first that is not."""
    finite = all(map(math.isfinite, replay.losses)) or replay.gradients_first
    return finite and replay.error is None


def _is_bad(trace: StepTrace, ref: Ref) -> bool:
    return any(writer >= 0 and trace.bad[writer] for writer in trace.writers(ref))
