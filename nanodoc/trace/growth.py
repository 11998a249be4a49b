"""How a value grew until it overflowed: from the op back along its largest input, as far as the ops
were examined."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nanodoc.facts.ops import GrowthPoint, OpFacts
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.ops import plain_name

if TYPE_CHECKING:
    from nanodoc.trace.record import Ref

_LONGEST = 96
_SHOWN = 6
_CASTS = 4
_AMPLIFIERS = ("exp", "expm1", "exp2", "sinh", "cosh", "div", "reciprocal", "rsqrt")
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
    for current, value, largest in _largest_inputs(trace, index):
        name = plain_name(trace.records[current].info.name)
        grew = value / max(largest, 1e-30) if math.isfinite(value) else 0.0
        if (
            current != index
            and name in _AMPLIFIERS
            and grew >= _FAR
            and value >= _HUGE
            and largest <= _MODEST
            and (best is None or grew > best[0])
        ):
            best = grew, current
    if best is None:
        return None
    forward = trace.forward_of(best[1])
    return trace.facts(best[1] if forward is None else forward)


def _largest_inputs(trace: StepTrace, index: int) -> Iterator[tuple[int, float, float]]:
    """(op, its largest |value|, that of its largest input) from `index` back."""
    current: int | None = index
    for _ in range(_LONGEST):
        detail = trace.details.get(current) if current is not None else None
        if detail is None or current is None:
            return
        record = trace.records[current]
        sizes = [f.absmax if f.absmax is not None else -1.0 for f in detail.inputs]
        sizes = sizes[: len(record.inputs)]
        if not sizes or max(sizes) < 0 or not detail.outputs:
            return
        out = detail.outputs[0]
        yield current, math.inf if out.nonfinite else float(out.absmax or 0.0), max(sizes)
        writer = next(iter(trace.writers(record.inputs[sizes.index(max(sizes))])), None)
        current = writer if writer is not None and 0 <= writer < current else None


def _walk(trace: StepTrace, index: int) -> list[GrowthPoint]:
    points: list[GrowthPoint] = []
    current: int | None = index
    for _ in range(_LONGEST):
        detail = trace.details.get(current) if current is not None else None
        if detail is None or current is None:
            break
        record = trace.records[current]
        out = next((facts for facts in detail.outputs), None)
        if out is None or (out.absmax is None and not out.nonfinite):
            break
        value = math.inf if out.nonfinite else float(out.absmax or 0.0)
        points.append(
            GrowthPoint(
                what=_where(trace, record.module) or plain_name(record.info.name), absmax=value
            )
        )
        sizes = [
            facts.absmax if facts.absmax is not None else -1.0
            for facts in detail.inputs[: len(record.inputs)]
        ]
        computed = [
            -1.0 if _is_weight(trace, ref) else size
            for ref, size in zip(record.inputs, sizes, strict=False)
        ]
        # activations grow; weights are what they are
        sizes = computed if max(computed, default=-1.0) >= 0 else sizes
        if not sizes or max(sizes) < 0:
            break
        largest = sizes.index(max(sizes))
        # token ids are no magnitudes
        if "int" in detail.inputs[largest].dtype or detail.inputs[largest].dtype == "bool":
            break
        writer = next(iter(trace.writers(record.inputs[largest])), None)
        if writer is None or writer < 0 or writer >= current:
            points.append(
                GrowthPoint(what=trace.source_name(record.inputs[largest]), absmax=sizes[largest])
            )
            break
        current = writer
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
