"""Where a value left the range that a lookup, a loss or a distribution takes: the step that raised,
traced once more, and from the value that was refused back to the op that made it so."""

from __future__ import annotations

from collections.abc import Iterator

from nanodoc.examination.reproduction import same_ops
from nanodoc.facts.calls import RangeFacts
from nanodoc.facts.crash import LeftRange
from nanodoc.facts.failure import Failure
from nanodoc.facts.refusals import refused
from nanodoc.replay.step_state import StepState
from nanodoc.replay.traced_replay import Replayer
from nanodoc.trace.birth import birth, ops_behind
from nanodoc.trace.examine import OpDetail, Request
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.properties import OutOfRange
from nanodoc.trace.record import Ref
from nanodoc.vocabulary.names import op_name

_LAST = 16
"""Ops before the exception: checks of arguments read the value before they raise."""
_MESSAGE = 400
"""Ops that write the values into the message of a check, behind it."""


def left_range(
    replayer: Replayer, capsule: StepState, failure: Failure, found: RangeFacts | None
) -> LeftRange | None:
    """The op of the step whose result is out of range while what it was made of is not; None where
    the value came into the step like that, or nothing was refused. `found` are the indices."""
    wanted = _range_of(failure, found)
    if wanted is None:
        return None
    first = replayer.replay(capsule)
    if first.error is None:
        return None
    last = _last_ops(first.trace, checked=failure.type == "ValueError")
    read = (ref for number in last for ref in first.trace.records[number].inputs)
    asked = {*last, *ops_behind(first.trace, read)}
    requests = {index: Request(wanted=wanted) for index in asked}
    trace = replayer.replay(capsule, requests).trace
    if not same_ops(first.trace, trace, asked):
        return None
    details = {index: detail for index in last if (detail := requests[index].seen) is not None}
    for reader, ref in _refused(trace, details, wanted, found):
        origin = birth(trace, ref, wanted, reader)
        if origin is None or origin.leaf is not None:
            return None
        op = trace.facts(origin.index)
        return LeftRange(op=op, low=wanted.low, high=wanted.high) if op.site else None
    return None


def _range_of(failure: Failure, found: RangeFacts | None) -> OutOfRange | None:
    if found is not None:
        least = -found.size if found.function == "getitem" else 0  # brackets count from the end
        return OutOfRange(least, found.size - 1, whole=True)
    refusal = refused(failure)
    return OutOfRange(*refusal) if refusal is not None else None


def _asks_for_all(name: str) -> bool:
    return name in ("all", "is_all_true")


def _last_ops(trace: StepTrace, *, checked: bool) -> range:
    """Those that read what was refused; a check in Python asks last whether all values are right,
    and then writes its message."""
    end = count = len(trace.records)
    if checked:
        behind = range(count - 1, max(-1, count - _MESSAGE), -1)
        checks = (i for i in behind if _asks_for_all(op_name(trace.records[i].info.name)))
        end = next(checks, count - 1) + 1
    return range(max(0, end - _LAST), end)


def _refused(
    trace: StepTrace, details: dict[int, OpDetail], wanted: OutOfRange, found: RangeFacts | None
) -> Iterator[tuple[int, Ref]]:
    """The values that the last ops read and that are out of range, the last op first, each with its
    reader. Indices come behind what they index, and hold those of the call that was refused;
    probabilities come before their weights."""
    order = 1 if wanted.high == 1 and not wanted.whole else -1
    for index, detail in sorted(details.items(), reverse=True):
        inputs = zip(trace.records[index].inputs, detail.known_in, strict=False)
        for ref, known in [*inputs][::order]:
            if known is None or known.integral != wanted.whole:
                continue
            if found is None or known.holds(found.minimum, found.maximum):
                yield index, ref
