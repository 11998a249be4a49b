"""Ops as their schemas describe them: what they read, what they write, and whether their output
holds values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from nanodoc.instrument.originals import call
from nanodoc.vocabulary.calls import FRESH, UNWRITTEN

_Tensor = torch.Tensor
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")
_RECEIVING = ("recv_", "recv_any_source_")
_MESSAGES = ("send", *_RECEIVING)
"""They are not waited for: another rank may first have to be sent something."""
_C10D_IN_PLACE = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_")
_READING = ("send", "barrier", "monitored_barrier_", "check_for_nan")
"""Of the namespace c10d; the others write into their first argument, which held nothing before.
Their schemas say nothing of it."""


class OpInfo(NamedTuple):
    """What the schema says of an op, looked up once per op and not once per call."""

    name: str
    writes: bool
    """It mutates an argument."""
    written: tuple[tuple[int, str], ...]
    """Position and name of each argument it mutates."""
    view: bool
    """Its outputs alias an input and hold nothing new."""
    silent: bool
    """Its output has no values yet (empty and its kin)."""
    receives: bool = False
    """Another rank sends what its arguments will hold."""
    given: int = 0
    """How many of its first arguments it is only given to be written into."""
    like: bool = False
    """Its output has the shape, dtype or device of its input, and none of its values."""
    outs: tuple[str, ...] = ()
    """Names of arguments (`out=`) that it only writes into."""


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensor arguments of an op, lists flattened, in order."""
    found = []
    for value in values:
        if isinstance(value, _Tensor):
            found.append(value)
        elif value.__class__ in (list, tuple):
            for item in value:
                if isinstance(item, _Tensor):
                    found.append(item)
                elif item.__class__ is list:  # a list for each rank
                    found += [part for part in item if isinstance(part, _Tensor)]
    return found


def outputs_of(out: Any) -> list[torch.Tensor]:
    """The tensors an op returned, lists flattened."""
    if isinstance(out, _Tensor):
        return [out]
    return tensors_in(out) if isinstance(out, (tuple, list)) else []


def written_by(info: OpInfo, args: Any, kwargs: Mapping[str, Any] | None) -> list[torch.Tensor]:
    """The tensors an op mutated, by its schema."""
    found = []
    for position, name in info.written:
        value = args[position] if position < len(args) else (kwargs or {}).get(name)
        found += tensors_in((value,))
    return found


@cache  # a pure function of the schema; there are only so many ops
def describe_op(func: Any) -> OpInfo:
    """Reads an op's schema: what it writes, whether it is a view, whether its output holds values
    yet."""
    schema = func._schema
    written = tuple((i, a.name) for i, a in enumerate(schema.arguments) if _is_written(a))
    writes = bool(written)
    returns = [r.alias_info for r in schema.returns]
    view = not writes and bool(returns) and all(alias is not None for alias in returns)
    base = str(func).split(".")[1] if "." in str(func) else str(func)
    receives, given = False, 0
    if str(func).startswith("c10d.") and base not in _READING:
        receives, given = base in _RECEIVING, int(base not in _C10D_IN_PLACE)
        writes = not receives
        written = ((0, schema.arguments[0].name),) if writes else ()
        view = False
    return OpInfo(
        str(func),
        writes,
        written,
        view or base == "_unsafe_view",
        base in UNWRITTEN,
        receives,
        given,
        base in (*FRESH, *UNWRITTEN),
        tuple(a.name for a in schema.arguments if a.kwarg_only and _is_written(a)),
    )


def is_collective(info: OpInfo) -> bool:
    """It exchanges tensors with other ranks."""
    return info.name.partition(".")[0] in _COLLECTIVES


def is_exchange(info: OpInfo) -> bool:
    """Its results come from other ranks, too: a collective, or an op of FSDP's or DTensor's around
    one."""
    return info.name.partition(".")[0] in (*_COLLECTIVES, "_dtensor", "fsdp")


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def call_op(func: Any, args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` inside a dispatch mode.

    torch hands a mode the constants of a TorchScript trace as Python numbers, also where the op
    takes a tensor only: there they are made tensors again.

    A collective whose result would arrive later is waited for: who looks at it has to see it.

    Raises what the op raises.
    """
    try:
        out = call(func, *args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        tensors = _with_tensors(func, args)
        if tensors is None:
            raise
        try:
            out = call(func, *tensors, **kwargs)
        except RuntimeError:
            raise error from None  # the op's own
    return _arrived(func, out) if func.namespace in _COLLECTIVES else out


def _arrived(func: Any, out: Any) -> Any:
    """The result of a collective, once it is there."""
    parts = out if isinstance(out, (list, tuple)) else [out]
    if func.namespace != "c10d":
        for tensor in tensors_in(parts):
            torch.ops._c10d_functional.wait_tensor.default(tensor)
    elif func.__name__.partition(".")[0] not in _MESSAGES:
        for work in parts:
            if isinstance(work, torch.ScriptObject):
                with contextlib.suppress(RuntimeError):  # the training's own wait says why
                    work.wait()  # type: ignore[attr-defined]  # of c10d's Work
    return out


def _with_tensors(func: Any, args: Any) -> list[Any] | None:
    """`args` with a 0-dim tensor for each number in a tensor's place; None where there is none."""
    expected = [str(argument.type) == "Tensor" for argument in func._schema.arguments]
    numbers = [
        tensor and isinstance(arg, (bool, int, float, complex))
        for tensor, arg in zip(expected, args, strict=False)
    ]
    if not any(numbers):
        return None
    pairs = zip(args, numbers, strict=True)
    return [_constant(arg) if number else arg for arg, number in pairs]


def _constant(value: complex) -> torch.Tensor:
    """A number as TorchScript keeps it, in the widest type of its kind."""
    widest = {float: torch.float64, complex: torch.complex128}
    return torch.tensor(value, dtype=widest.get(type(value)), device="cpu")
