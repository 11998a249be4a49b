"""From one traced step and its half-precision log to facts: who is flushed to zero, who is near the
largest number, what autocast really covered, and gradients clipped by hand while they were still
scaled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from nanodoc import accelerator
from nanodoc.facts.amp import AutocastRegion, Flushed, Headroom
from nanodoc.replay.traced_replay import GRADIENT_MARK
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.half import HalfLog, HalfOp
from nanodoc.trace.spans import Place, resolved
from nanodoc.vocabulary.calls import CLAMPS, FACTORS
from nanodoc.vocabulary.names import op_name

# ops between the half-precision op and the parameter's gradient: casts, views, the unscaling
_BEHIND = 16
_UNSCALE = "aten._amp_foreach_non_finite_check_and_unscale_"
_BOUNDED = (*CLAMPS, "hardtanh", "nan_to_num", "sign")
_RESCALED = (*FACTORS, "copy")
_MOST = 64


@dataclass(frozen=True, slots=True)
class HalfFacts:
    """What `half_facts` found."""

    flushed: tuple[Flushed, ...] = ()
    headroom: tuple[Headroom, ...] = ()
    regions: tuple[AutocastRegion, ...] = ()
    clips: tuple[Place, ...] = ()


def half_facts(
    trace: StepTrace, log: HalfLog, parameters: Sequence[str], device: torch.device
) -> HalfFacts:
    """The facts of one traced step whose gradients were marked with `GRADIENT_MARK`. The worst come
    first."""
    flushed = [*_by_parameter(trace, log, parameters), *_by_module(trace, log)]
    return HalfFacts(
        flushed=tuple(sorted(flushed, key=lambda value: -value.share)[:_MOST]),
        headroom=tuple(sorted(_headroom(trace, log), key=lambda value: -value.absmax)[:_MOST]),
        regions=tuple(_regions(trace, log, device)),
        clips=tuple(dict.fromkeys(_clips(trace))),
    )


def _by_parameter(trace: StepTrace, log: HalfLog, parameters: Sequence[str]) -> Iterator[Flushed]:
    """Per parameter, the half-precision op that made its gradient."""
    for name in parameters:
        ref = trace.marks.get(GRADIENT_MARK + name)
        behind = trace.ancestors(ref, _BEHIND) if ref is not None else []
        source = next(
            (
                i
                for i in behind
                if i in log.ops and trace.records[i].phase == "backward" and log.ops[i].nonzero
            ),
            None,
        )
        if source is not None:
            yield _flushed(trace, source, log.ops[source], "gradient", name)


def _by_module(trace: StepTrace, log: HalfLog) -> Iterator[Flushed]:
    """Per module, its op that loses the largest share, in forward and in backward."""
    worst: dict[tuple[str, str], tuple[int, HalfOp]] = {}
    for index, op in log.ops.items():
        if not op.flushed:
            continue
        kind = (
            "activation"
            if trace.records[index].phase in ("forward", "recompute")
            else "activation gradient"
        )
        key = (kind, _module_of(trace, index) or "")
        known = worst.get(key)
        if known is None or op.flushed / op.nonzero > known[1].flushed / known[1].nonzero:
            worst[key] = (index, op)
    for (kind, module), (index, op) in worst.items():
        yield _flushed(trace, index, op, kind, module)


def _flushed(trace: StepTrace, index: int, op: HalfOp, kind: str, name: str) -> Flushed:
    forward = trace.forward_of(index) if trace.records[index].phase == "backward" else None
    facts = trace.facts(index if forward is None else forward)
    return Flushed(
        kind=kind,
        name=name,
        op=trace.records[index].info.name,
        dtype=op.dtype,
        location=facts.location,
        module_type=facts.module_type,
        nonzero=op.nonzero,
        flushed=op.flushed,
        lost_norm=(op.lost / op.total) ** 0.5 if op.total else 0.0,
    )


def _headroom(trace: StepTrace, log: HalfLog) -> Iterator[Headroom]:
    largest: dict[str, tuple[int, HalfOp]] = {}
    for index, op in log.ops.items():
        module = _module_of(trace, index) or ""
        if trace.records[index].phase == "forward" and (
            module not in largest or op.absmax > largest[module][1].absmax
        ):
            largest[module] = (index, op)
    for module, (index, op) in largest.items():
        facts = trace.facts(index)
        yield Headroom(
            module=module or None,
            module_type=facts.module_type,
            op=facts.op,
            dtype=op.dtype,
            absmax=op.absmax,
            location=facts.location,
        )


def _module_of(trace: StepTrace, index: int) -> str | None:
    forward = trace.forward_of(index) if trace.records[index].phase == "backward" else None
    module = trace.records[index if forward is None else forward].module
    return trace.modules[module][0] if 0 <= module < len(trace.modules) else None


def _regions(trace: StepTrace, log: HalfLog, device: torch.device) -> Iterator[AutocastRegion]:
    islands = [region for region in log.regions if not region.enabled]
    floats = [
        i
        for i in log.floats
        if trace.records[i].phase == "forward"
        and not any(island.begin <= i < island.end for island in islands)
    ]
    outside = sum(not any(region.begin <= i < region.end for region in log.regions) for i in floats)
    for region in log.regions:
        inside = range(region.begin, max(region.begin, region.end))
        escaped = [i for i in floats if i in inside]
        yield AutocastRegion(
            place=resolved(region.place),
            device=region.device,
            dtype=region.dtype,
            enabled=region.enabled,
            ops=len(inside),
            half_ops=sum(i in log.ops for i in inside),
            float_matmuls=len(escaped),
            matmuls=sum(i in inside and trace.records[i].phase == "forward" for i in log.matmuls),
            escaped=trace.facts(escaped[0]) if escaped else None,
            float_matmuls_outside=outside,
            nested=region.nested,
            same_device=region.device == device.type,
            available=torch.amp.is_autocast_available(region.device)
            and accelerator.exists(region.device),
        )


def _clips(trace: StepTrace) -> Iterator[Place]:
    """Lines of the user's that change gradients non-linearly and whose gradients are unscaled only
    afterwards."""
    logs = {id(ref[0]) for name, ref in trace.marks.items() if name.startswith(GRADIENT_MARK)}
    waiting: list[tuple[Place, set[int]]] = []
    readers = {
        index
        for index, record in enumerate(trace.records)
        if any(id(log) in logs for log, _ in record.inputs)
    }
    for index, record in enumerate(trace.records):
        touched = {id(log) for log, _ in record.inputs} & logs
        if record.info.name.startswith(_UNSCALE):
            yield from (place for place, changed in waiting if changed & touched)
            waiting = [(place, changed) for place, changed in waiting if not changed & touched]
        elif (
            touched
            and record.info.writes
            and record.phase == "forward"
            and record.place is not None
        ):
            name = op_name(record.info.name)
            if name in _BOUNDED or (name in _RESCALED and _depends(trace, index, logs, readers)):
                waiting.append((record.caller or record.place, touched))


def _depends(trace: StepTrace, index: int, logs: set[int], readers: set[int]) -> bool:
    """A factor is itself computed from the gradients: their norm."""
    for ref in trace.records[index].inputs:
        if id(ref[0]) not in logs and any(
            i in readers and i < index for i in trace.ancestors(ref, _BEHIND)
        ):
            return True
    return False
