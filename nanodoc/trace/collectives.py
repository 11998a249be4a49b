"""What a traced step gave to other ranks, and what it copied out of a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nanodoc.trace.examine import OpDetail
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.ops import is_collective
from nanodoc.trace.record import BACKWARD, Record, Ref

SENT_MARK = "sent:"


def sick_when_sent(records: Sequence[Record], details: Mapping[int, OpDetail]) -> list[Ref]:
    """What this rank gave into collectives that was not finite, from its first backward op on, as
    far as they were looked at closely."""
    first = next((i for i, record in enumerate(records) if record.phase == BACKWARD), len(records))
    return [
        ref
        for index, detail in sorted(details.items())
        if index >= first and is_collective(records[index].info)
        for ref, facts in zip(records[index].inputs, detail.inputs, strict=False)
        if facts.nonfinite
    ]


def is_received(trace: StepTrace, index: int) -> bool:
    """What is not finite in an op's output came from other ranks: what this one gave was finite."""
    return trace.facts(index).received


def copied_from(record: Record, records: Sequence[Record]) -> int | None:
    """The collective whose result an op copies from memory that no op was seen to write: gloo
    reduces into a buffer of its own, and copies from it whenever somebody waits."""
    if record.info.name != "aten.copy_.default" or not record.inputs:
        return None
    written, count = record.inputs[0]
    last = written[count - 1] if count else -1
    return last if last >= 0 and is_collective(records[last].info) else None
