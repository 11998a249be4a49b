"""The first op whose result has a property that none of its inputs has.

Works on a trace whose ops were asked for the property (`Request.wanted`). The walk goes backwards
from a value that has it, through the ops that only hand it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanodoc.trace.graph import StepTrace
    from nanodoc.trace.properties import Property
    from nanodoc.trace.record import Record, Ref

_LONGEST = 2000  # ops
_MOST_OPS = 20_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value got a property: in op `index`, or, with a `leaf`, before the step: op `index`
    was the first to read it."""

    index: int
    leaf: str | None = None


def birth(trace: StepTrace, ref: Ref, wanted: Property, reader: int) -> Origin | None:
    """Where the value that `ref` names, which op `reader` reads, got the property; None where that
    is not known."""
    for _ in range(_LONGEST):
        writer = _writer(trace, ref, wanted)
        if writer is None:
            return None
        if writer < 0:
            lifted = _lifted(trace, ref)
            leaf = trace.leaf_name(writer)
            return Origin(reader, leaf) if lifted is None else Origin(lifted)
        detail = trace.details[writer]
        after = next(known for known in detail.known_out if wanted.held(known))
        before = [] if trace.records[writer].info.like else detail.known_in
        further = _passed_on(trace, writer, wanted, before, after)
        if further is None:
            return Origin(writer) if wanted.born(before, after) else None
        ref, reader = further, writer
    return None


def ops_behind(trace: StepTrace, refs: Iterable[Ref]) -> set[int]:
    """The ops that have to be asked for a property, so that a walk from these values finds its
    birth."""
    behind = {index for ref in refs for index in trace.ancestors(ref, _MOST_OPS)}
    return behind | {i for i, record in enumerate(trace.records) if _lifts(record)}


def _lifts(record: Record) -> bool:
    return record.info.name.startswith("aten.lift_fresh")


def _passed_on(
    trace: StepTrace, index: int, wanted: Property, before: Sequence[Any], after: Any
) -> Ref | None:
    """The input of an op that its result has the property of: one that was computed, if any."""
    passing = [
        ref
        for ref, known in zip(trace.records[index].inputs, before, strict=False)
        if wanted.held(known) and not _has_no_values(trace, ref) and wanted.passes(known, after)
    ]
    return min(passing, key=lambda ref: _is_leaf(trace, ref), default=None)


def _lifted(trace: StepTrace, ref: Ref) -> int | None:
    """The op by which a tensor made of Python's values came into the step, if one did."""
    for index, record in enumerate(trace.records):
        if _lifts(record) and record.inputs[0][0] is ref[0]:
            return index
    return None


def _is_leaf(trace: StepTrace, ref: Ref) -> bool:
    return next(trace.writers(ref), -1) < 0


def _writer(trace: StepTrace, ref: Ref, wanted: Property) -> int | None:
    """The last op before `ref` was read that wrote something with the property there, or the leaf
    that it is."""
    for index in trace.writers(ref):
        if index < 0:
            return index
        detail = trace.details.get(index)
        if detail is None:
            return None
        if any(map(wanted.held, detail.known_out)):
            return index
    return None


def _has_no_values(trace: StepTrace, ref: Ref) -> bool:
    """Memory that nobody has written to yet."""
    last = next(trace.writers(ref), None)
    return last is not None and last >= 0 and trace.records[last].info.silent
