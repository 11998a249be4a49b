"""What a traced step gave to other ranks, and what it copied out of a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nanodoc.trace.examine import OpDetail
from nanodoc.trace.ops import is_collective
from nanodoc.trace.record import Record, Ref

SENT_MARK = "sent:"


def sick_when_sent(records: Sequence[Record], details: Mapping[int, OpDetail]) -> list[Ref]:
    """What was not finite of what this rank gave into the first collective that was given anything
    of the kind, among those that were looked at closely."""
    for index, detail in sorted(details.items()):
        record = records[index]
        if is_collective(record.info):
            pairs = zip(record.inputs, detail.inputs, strict=False)
            sick = [ref for ref, facts in pairs if facts.nonfinite]
            if sick:
                return sick
    return []


def copied_from(record: Record, records: Sequence[Record]) -> int | None:
    """The collective whose result an op copies from memory that no op was seen to write: gloo
    reduces into a buffer of its own, and copies from it whenever somebody waits."""
    if record.info.name != "aten.copy_.default" or not record.inputs:
        return None
    written, count = record.inputs[0]
    last = written[count - 1] if count else -1
    return last if last >= 0 and is_collective(records[last].info) else None
