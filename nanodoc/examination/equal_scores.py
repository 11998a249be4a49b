"""Where scores became equal for all classes, or for all samples: the last step, traced once more,
and from the scores that a loss was given back to the op whose result is equal along that axis while
what it was made of is not."""

from __future__ import annotations

from nanodoc.examination.reproduction import same_ops
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.inspection import EqualFacts
from nanodoc.replay.step_state import StepState
from nanodoc.replay.traced_replay import Replayer
from nanodoc.trace.birth import birth, ops_behind
from nanodoc.trace.examine import Request
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.properties import EqualSlices
from nanodoc.trace.record import Ref

_MOST_OPS = 20_000


def equal_in(calls: StepCalls) -> CallFacts | None:
    """The first loss whose scores are equal along an axis along which its targets are not."""
    reaching = calls.reaching_the_loss()
    found = (call for call in calls.calls if call.notes.loss.equal and call.index in reaching)
    return next(found, None)


def became_equal(replayer: Replayer, capsule: StepState, calls: StepCalls) -> EqualFacts | None:
    """The op that made them so; None where the scores were never different, or only spread along
    the axis."""
    call = equal_in(calls)
    if call is None:
        return None
    shape = call.arguments[0].shape
    equal = call.notes.loss.equal
    axis = 1 if 1 in equal else equal[0]  # that of the classes first
    wanted = EqualSlices(shape[axis])
    first = replayer.replay(capsule).trace
    losses = [ref for name, ref in first.marks.items() if name.startswith("loss:")]
    asked = ops_behind(first, losses)
    requests = {index: Request(wanted=wanted) for index in asked}
    trace = replayer.replay(capsule, requests).trace
    if not same_ops(first, trace, asked):
        return None
    read = _scores(trace, wanted, shape)
    origin = birth(trace, read[0], wanted, read[1]) if read is not None else None
    if origin is None or origin.leaf is not None:
        return None
    op = trace.facts(origin.index)
    return EqualFacts(call=call.index, axis=axis, size=wanted.size, op=op) if op.site else None


def _scores(
    trace: StepTrace, wanted: EqualSlices, shape: tuple[int, ...]
) -> tuple[Ref, int] | None:
    """What the op nearest to the loss reads of this shape, and that op."""
    for name, start in trace.marks.items():
        if not name.startswith("loss:"):
            continue
        for index in trace.ancestors(start, _MOST_OPS):
            detail, record = trace.details.get(index), trace.records[index]
            if detail is None or record.phase != "forward":
                continue
            for ref, facts, known in zip(
                record.inputs, detail.inputs, detail.known_in, strict=False
            ):
                if facts.shape == shape and wanted.held(known):
                    return ref, index
    return None
