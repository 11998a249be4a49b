"""How a value grew until it overflowed: from the op back along its largest input, as far as the ops
were examined."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanodoc.facts.ops import GrowthPoint, OpFacts
from nanodoc.trace.graph import StepTrace
from nanodoc.vocabulary.names import op_name
from nanodoc.vocabulary.ops import AMPLIFIERS

if TYPE_CHECKING:
    from nanodoc.trace.record import Ref

_LONGEST = 96
_SHOWN = 6
_CASTS = 4
_FAR, _HUGE, _MODEST = 1e6, 1e10, 1e4
_STEP = 2.0  # a point that changes the value by less tells nothing


def growth_of(trace: StepTrace, index: int) -> tuple[GrowthPoint, ...]:
    """The points from afar to the op at `index`, at most `_SHOWN`: its own value and where the
    largest steps were made."""
    points = _walk(trace, index)
    if len(points) < 2:
        return ()
    kept = [points[0]]
    for point in points[1:-1]:
        if not kept[-1].absmax / _STEP < point.absmax < kept[-1].absmax * _STEP:
            kept.append(point)
    kept.append(points[-1])
    while len(kept) > _SHOWN:  # the least telling step goes first
        weakest = min(
            range(1, len(kept) - 1),
            key=lambda i: abs(_log(kept[i].absmax) - _log(kept[i - 1].absmax)),
        )
        del kept[weakest]
    return tuple(kept) if kept[-1].absmax > 10 * max(kept[0].absmax, 1e-30) else ()


def amplifier_of(trace: StepTrace, index: int) -> OpFacts | None:
    """The op before the one at `index` that made huge values of modest ones, following the largest
    input back: an exponential, or a division by next to nothing."""
    best: tuple[float, int] | None = None
    for point in _back(trace, index):
        name = op_name(trace.records[point.index].info.name)
        finite = math.isfinite(point.value) and point.position is not None
        grew = point.value / max(point.largest, 1e-30) if finite else 0.0
        if (
            point.index != index
            and name in AMPLIFIERS
            and grew >= _FAR
            and point.value >= _HUGE
            and point.largest <= _MODEST
            and (best is None or grew > best[0])
        ):
            best = grew, point.index
    if best is None:
        return None
    forward = trace.forward_of(best[1])
    return trace.facts(best[1] if forward is None else forward)


@dataclass(frozen=True, slots=True)
class _Point:
    """One op on the way back, and the largest of its inputs that says something."""

    index: int
    value: float
    """The op's largest |value|; inf where it is not finite."""
    position: int | None
    """Of the largest input; None where there is none, or where it is no magnitude (token ids)."""
    largest: float


def _back(trace: StepTrace, index: int) -> Iterator[_Point]:
    """The op at `index`, and those that made its largest input, as far as they were examined."""
    current: int | None = index
    for _ in range(_LONGEST):
        detail = trace.details.get(current) if current is not None else None
        out = next(iter(detail.outputs), None) if detail is not None else None
        if detail is None or current is None or out is None:
            return
        if out.absmax is None and not out.nonfinite:
            return
        record = trace.records[current]
        sizes = [-1.0 if f.absmax is None else f.absmax for f in detail.inputs]
        sizes = sizes[: len(record.inputs)]
        computed = [
            -1.0 if _is_weight(trace, ref) else size
            for ref, size in zip(record.inputs, sizes, strict=False)
        ]
        # activations grow; weights are what they are
        sizes = computed if max(computed, default=-1.0) >= 0 else sizes
        largest = max(sizes, default=-1.0)
        position = sizes.index(largest) if largest >= 0 else None
        if position is not None and _is_index(detail.inputs[position].dtype):
            position = None
        value = math.inf if out.nonfinite else float(out.absmax or 0.0)
        yield _Point(current, value, position, largest)
        if position is None:
            return
        writer = next(iter(trace.writers(record.inputs[position])), None)
        current = writer if writer is not None and 0 <= writer < current else None


def _is_index(dtype: str) -> bool:
    return "int" in dtype or dtype == "bool"


def _walk(trace: StepTrace, index: int) -> list[GrowthPoint]:
    """The values on the way, from afar to the op, and what they began with."""
    points: list[GrowthPoint] = []
    last: _Point | None = None
    for last in _back(trace, index):
        record = trace.records[last.index]
        name = _where(trace, record.module) or op_name(record.info.name)
        points.append(GrowthPoint(what=name, absmax=last.value))
    if last is not None and last.position is not None:
        ref = trace.records[last.index].inputs[last.position]
        writer = next(iter(trace.writers(ref)), None)
        if writer is None or writer < 0 or writer >= last.index:
            points.append(GrowthPoint(what=trace.source_name(ref), absmax=last.largest))
    return points[::-1]


def _where(trace: StepTrace, module: int) -> str:
    """The path of a layer; nothing for a module of modules, whose ops say more by their own
    names."""
    path = trace.modules[module][0] if 0 <= module < len(trace.modules) else ""
    return "" if any(other.startswith(path + ".") for other, _ in trace.modules) else path


def _is_weight(trace: StepTrace, ref: Ref) -> bool:
    """A parameter, or a cast or view of one."""
    for _ in range(_CASTS):
        writer = next(iter(trace.writers(ref)), None)
        if writer is None:
            return False
        if writer < 0:
            return trace.leaf_name(writer).startswith("param:")
        inputs = trace.records[writer].inputs
        if len(inputs) != 1:
            return False
        ref = inputs[0]
    return False


def _log(value: float) -> float:
    return math.log(value) if 0 < value < math.inf else 100.0 if value > 0 else -100.0
