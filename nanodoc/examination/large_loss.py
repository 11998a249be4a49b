"""Where the size of a huge loss comes from: the last step, traced once more, and from the loss back
to the op that made values so large, or to the tensor that came into the step like that."""

from __future__ import annotations

from nanodoc.examination.reproduction import same_ops
from nanodoc.facts.calls import StepCalls
from nanodoc.facts.inspection import LargeFacts
from nanodoc.replay.step_state import StepState
from nanodoc.replay.traced_replay import Replayer
from nanodoc.trace.birth import birth, ops_behind
from nanodoc.trace.examine import Request
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.properties import Large

HUGE = 1e6
"""A mean over calibrated outputs lies below, and so does the sum over a batch of pictures."""


_MEANT = 0.01
"""Of the values made: with data of that size they are meant, as with counts of millions."""


def is_huge(calls: StepCalls) -> bool:
    """Something that the last step differentiates is."""
    return any(abs(calls.calls[index].notes.value or 0.0) >= HUGE for index in calls.losses)


def made_large(replayer: Replayer, capsule: StepState) -> LargeFacts | None:
    """What made the largest loss of the step so large; None where it grew little by little, or came
    from the batch or from the weights."""
    first = replayer.replay(capsule)
    if not first.losses:
        return None
    number = max(range(len(first.losses)), key=lambda index: abs(first.losses[index]))
    mark = f"loss:{number}"
    asked = ops_behind(first.trace, [first.trace.marks[mark]])
    wanted = Large(HUGE)
    requests = {index: Request(wanted=wanted) for index in asked}
    trace = replayer.replay(capsule, requests).trace
    if not same_ops(first.trace, trace, asked):
        return None
    origin = birth(trace, trace.marks[mark], wanted, len(trace.records) - 1)
    if origin is None:
        return None
    op = trace.facts(origin.index)
    leaf = origin.leaf
    if op.site is None or (leaf is not None and leaf.startswith(("param:", "batch"))):
        return None
    if leaf is None:
        made = op.outputs[0]
        written = op.short.startswith("lift") and made.numel == 1
        largest = made.absmax or 0.0
        meant = written or _given(trace, asked) >= _MEANT * largest
        return None if meant else LargeFacts(op=op, name="", largest=largest)
    given = max(op.inputs, key=lambda facts: facts.absmax or 0.0)
    if given.numel == 1:  # a number that somebody wrote
        return None
    return LargeFacts(op=op, name=leaf.removeprefix("buffer:"), largest=given.absmax or 0.0)


def _given(trace: StepTrace, asked: set[int]) -> float:
    """The largest |value| among the tensors that came into the step, other than the weights."""
    return max(
        (
            facts.absmax or 0.0
            for index in asked & trace.details.keys()
            for ref, facts in zip(
                trace.records[index].inputs, trace.details[index].inputs, strict=False
            )
            if facts.numel > 1
            and (leaf := next(trace.writers(ref), 0)) < 0
            and not trace.leaf_name(leaf).startswith("param:")
        ),
        default=0.0,
    )
