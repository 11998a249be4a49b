"""The close look at single ops: what went in, what came out, and where exactly it went wrong.

Used on the few ops a diagnosis is about, when the step is traced once more; nothing here runs in
the screening pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from nanodoc.facts.notes import OpNotes
from nanodoc.facts.ops import TensorFacts, ValuesAt
from nanodoc.tensors.plain import local_parts
from nanodoc.trace.exchanges import Exchanges
from nanodoc.trace.op_notes import op_notes
from nanodoc.trace.ops import call_op, describe_op, outputs_of, tensors_in, written_by
from nanodoc.trace.properties import Property

_MOST_POSITIONS = 4096  # bad elements kept by position; enough to tell zeros from the rest
_MOST_ROWS = 4096
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Positions:
    """Elements of a tensor of `shape`, as flat indices on the CPU."""

    shape: tuple[int, ...]
    flat: torch.Tensor


@dataclass(slots=True)
class Request:
    """What to look at when an op is met again: itself, and the values of an input at positions
    found elsewhere."""

    locate: bool = False
    """Also find the bad elements of the output and the inputs' values there."""
    gathers: list[tuple[int, Positions]] = field(default_factory=list)
    wanted: Property | None = None
    """Also ask what goes in and what comes out for it."""
    seen: OpDetail | None = None
    """With `wanted`: what went into the op, which may have raised."""
    on_reached: Callable[[], None] | None = None
    """Called when the op has run, before the user's line goes on."""


class EveryOp(dict[int, Request]):
    """Requests that look closely at whatever op is met."""

    def get(self, index: int, default: object = None) -> Request:
        return Request(locate=True)


@dataclass(slots=True)
class OpDetail:
    """What was seen at one op. `inputs` follow the order of `Record.inputs`; labels are filled in
    by the graph."""

    inputs: list[TensorFacts]
    outputs: list[TensorFacts]
    scalars: dict[str, Any]
    pointwise: bool
    bad: Positions | None = None
    bad_rows: tuple[int, ...] = ()
    values_at: list[ValuesAt | None] = field(default_factory=list)
    upcast_absmax: float | None = None
    received: bool = False
    notes: OpNotes | None = None
    gathered: list[ValuesAt | None] = field(default_factory=list)
    error: str | None = None
    known_in: list[Any] = field(default_factory=list)
    """What the property is asked of the inputs gave, and of the outputs."""
    known_out: list[Any] = field(default_factory=list)

    @property
    def out_nan(self) -> bool:
        return any(facts.nan for facts in self.outputs)

    @property
    def out_bad(self) -> bool:
        return any(facts.nonfinite for facts in self.outputs)


def examine_call(
    func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor], request: Request
) -> tuple[Any, OpDetail]:
    """Runs the op and returns its output with the detail. The run's own tensors are read, never
    written."""
    before = [tensor_facts(tensor, f"input {position}") for position, tensor in enumerate(inputs)]
    gathered = [
        values_at(inputs[where], positions) if where < len(inputs) else None
        for where, positions in request.gathers
    ]
    # an in-place op destroys what we have to compare its result with
    info = describe_op(func)
    kept = [tensor.detach().clone() if info.writes else tensor for tensor in inputs]
    pointwise = torch.Tag.pointwise in func.tags
    scalars = _scalars(func, args, kwargs)
    detail = OpDetail(before, [], scalars, pointwise, gathered=gathered)
    if request.wanted is not None:
        detail.known_in = [request.wanted.of(tensor) for tensor in inputs]
        request.seen = detail
    # what these run by themselves would be collectives
    sharded = local_parts(given := tensors_in((*args, *kwargs.values()))) is not given
    notes = op_notes(func, args, kwargs) if not sharded else None
    with Exchanges() if sharded else nullcontext() as exchanges:
        out = call_op(func, args, kwargs)
    detail.received = exchanges is not None and exchanges.received_only
    detail.notes = notes
    outputs = local_parts(outputs_of(out) or written_by(info, args, kwargs))
    if info.silent:  # what its memory happens to hold
        return out, detail
    if request.wanted is not None:
        detail.known_out = [request.wanted.of(tensor) for tensor in outputs]
    detail.outputs = [
        tensor_facts(tensor, f"output {position}") for position, tensor in enumerate(outputs)
    ]
    for tensor, facts in zip(outputs, detail.outputs, strict=True):
        if facts.nonfinite and request.locate and tensor.layout == torch.strided:
            _locate(detail, tensor, kept)
            if not sharded and tensor.dtype in _HALF and not any(fact.nonfinite for fact in before):
                detail.upcast_absmax = _upcast(func, args, kwargs, kept, tensor.device.type)
            break
    return out, detail


def tensor_facts(tensor: torch.Tensor, label: str) -> TensorFacts:
    """Counts and the finite range of a tensor of any dtype; empty or unreadable tensors have a None
    range."""
    facts = partial(
        TensorFacts,
        label=label,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        numel=tensor.numel(),
    )
    empty = facts(minimum=None, maximum=None, nan=0, posinf=0, neginf=0, zeros=0)
    if tensor.numel() == 0 or tensor.layout != torch.strided or tensor.device.type == "meta":
        return empty
    values = tensor.detach()
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    try:
        zeros = values.numel() - int(torch.count_nonzero(values))
        if not values.is_floating_point():
            low, high = (
                torch.aminmax(values.to(torch.int64))
                if values.dtype == torch.bool
                else torch.aminmax(values)
            )
            return facts(
                minimum=float(low), maximum=float(high), nan=0, posinf=0, neginf=0, zeros=zeros
            )
        if values.element_size() == 1:  # 8-bit floats have few kernels; float32 holds them exactly
            values = values.float()
        low, high = torch.aminmax(values)
        nan = posinf = neginf = 0
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            nan, posinf, neginf = (
                int(torch.count_nonzero(test(values)))
                for test in (torch.isnan, torch.isposinf, torch.isneginf)
            )
            finite = values[torch.isfinite(values)]
            if finite.numel() == 0:
                return facts(
                    minimum=None, maximum=None, nan=nan, posinf=posinf, neginf=neginf, zeros=zeros
                )
            low, high = torch.aminmax(finite)
    except (RuntimeError, NotImplementedError):
        return empty
    return facts(
        minimum=float(low), maximum=float(high), nan=nan, posinf=posinf, neginf=neginf, zeros=zeros
    )


def values_at(tensor: torch.Tensor, positions: Positions) -> ValuesAt | None:
    """The values of `tensor`, broadcast to the positions' shape, at those positions; None if it
    doesn't broadcast."""
    try:
        spread = (
            tensor.detach().expand(positions.shape)
            if tuple(tensor.shape) != positions.shape
            else tensor.detach()
        )
    except RuntimeError:
        return None
    if spread.is_complex() or spread.layout != torch.strided:
        return None
    where = (
        torch.unravel_index(positions.flat.to(spread.device), positions.shape)
        if positions.shape
        else ()
    )
    picked = spread[where] if positions.shape else spread.reshape(1)
    facts = tensor_facts(picked, "")
    return ValuesAt(
        minimum=facts.minimum,
        maximum=facts.maximum,
        zeros=facts.zeros,
        count=facts.numel,
        inf=facts.inf,
    )


def bad_positions(tensor: torch.Tensor) -> tuple[Positions, tuple[int, ...]]:
    """Where `tensor` is non-finite (the first few thousand elements), and which rows of its first
    dimension are."""
    values = torch.view_as_real(tensor).sum(-1) if tensor.is_complex() else tensor.detach()
    bad = ~torch.isfinite(values)
    flat = bad.flatten().nonzero().flatten()[:_MOST_POSITIONS].cpu()
    rows: tuple[int, ...] = ()
    if bad.dim() >= 1:
        rows = tuple(bad.reshape(bad.shape[0], -1).any(1).nonzero().flatten()[:_MOST_ROWS].tolist())
    return Positions(tuple(bad.shape), flat), rows


def _locate(detail: OpDetail, output: torch.Tensor, inputs: list[torch.Tensor]) -> None:
    detail.bad, detail.bad_rows = bad_positions(output)
    shape = tuple(output.shape)
    detail.values_at = [
        values_at(tensor, detail.bad) if detail.pointwise or tuple(tensor.shape) == shape else None
        for tensor in inputs
    ]


def _scalars(func: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The op's arguments that are plain values, by their names in the schema."""
    found: dict[str, Any] = {}
    for position, argument in enumerate(func._schema.arguments):
        value = (
            args[position]
            if position < len(args)
            else kwargs.get(argument.name, argument.default_value)
        )
        if isinstance(value, (bool, int, float, str)) or (
            isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value)
        ):
            found[argument.name] = value
    return found


def _upcast(
    func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor], device: str
) -> float | None:
    """Largest |value| of the same op on float32 copies of its half-precision inputs; None if not
    finite there either."""
    if func.name().startswith("aten::_to_copy") or func.name().startswith("aten::copy_"):
        facts = tensor_facts(inputs[-1], "")
        return None if facts.nonfinite else facts.absmax
    # drawing again would take the user's random numbers
    if func.name().startswith("aten::native_dropout"):
        facts = tensor_facts(inputs[0], "")
        return (
            None if facts.absmax is None or not 0 <= args[1] < 1 else facts.absmax / (1 - args[1])
        )
    outputs = upcast_outputs(func, args, kwargs, inputs, device)
    first = next(iter(outputs or ()), None)
    if first is None or first.dtype in _HALF:
        return None
    facts = tensor_facts(first, "")
    return None if facts.nonfinite else facts.absmax


def upcast_outputs(
    func: Any, args: Any, kwargs: dict[str, Any], inputs: list[torch.Tensor], device: str
) -> list[torch.Tensor] | None:
    """What the op gives on float32 copies of its half-precision inputs; None where it can't be run
    again: it draws random numbers (the user's), is an op of somebody's own, or has no float32 form.
    `inputs` are its tensors as they were before it ran."""
    # somebody's own op may count its calls, or insist on its dtype
    if func.namespace not in ("aten", "prims"):
        return None
    if torch.Tag.nondeterministic_seeded in func.tags or any(
        argument.name == "generator" for argument in func._schema.arguments
    ):
        return None
    remaining = iter(inputs)

    def raised(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            copy = next(remaining)
            return copy.float() if copy.dtype in _HALF else copy.clone()
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            return [raised(v) for v in value]
        return torch.float32 if value in _HALF else value

    try:
        with torch.autocast(device, enabled=False):
            return outputs_of(
                func(
                    *[raised(a) for a in args],
                    **{key: raised(value) for key, value in kwargs.items()},
                )
            )
    except (RuntimeError, NotImplementedError, TypeError, StopIteration):
        return None
