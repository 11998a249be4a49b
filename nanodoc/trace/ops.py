"""Ops as their schemas describe them: what they read, what they write, and whether their output
holds values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

_Tensor = torch.Tensor
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd")
_UNWRITTEN = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
_LIKE = (
    "new_zeros",
    "new_ones",
    "new_full",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
)


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
    like: bool = False
    """Its output has the shape, dtype or device of its input, and none of its values."""


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensor arguments of an op, lists flattened, in order."""
    found = []
    for value in values:
        if isinstance(value, _Tensor):
            found.append(value)
        elif value.__class__ in (list, tuple):
            found += [item for item in value if isinstance(item, _Tensor)]
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
    written = tuple(
        (i, a.name)
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    writes = bool(written)
    returns = [r.alias_info for r in schema.returns]
    view = not writes and bool(returns) and all(alias is not None for alias in returns)
    base = str(func).split(".")[1] if "." in str(func) else str(func)
    return OpInfo(
        str(func),
        writes,
        written,
        view or base == "_unsafe_view",
        base in _UNWRITTEN,
        str(func).startswith("c10d.recv_"),
        base in _LIKE + _UNWRITTEN,
    )


def call_op(func: Any, args: Any, kwargs: Any) -> Any:
    """`func(*args, **kwargs)` inside a dispatch mode.

    torch hands a mode the constants of a TorchScript trace as Python numbers, also where the op
    takes a tensor only: there they are made tensors again.

    A collective whose result would arrive later is waited for: who looks at it has to see it.

    Raises what the op raises.
    """
    try:
        out = func(*args, **kwargs)
        return _arrived(out) if func.namespace in _COLLECTIVES else out
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        tensors = _with_tensors(func, args)
        if tensors is None:
            raise
        try:
            return func(*tensors, **kwargs)
        except RuntimeError:
            raise error from None  # the op's own


def _arrived(out: Any) -> Any:
    """The result of a collective, once it is there."""
    wait = torch.ops._c10d_functional.wait_tensor.default
    for tensor in out if isinstance(out, (list, tuple)) else [out]:
        if isinstance(tensor, torch.Tensor):
            wait(tensor)
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


@cache
def plain_name(op: str) -> str:
    """`aten.add_.Tensor` as `add`, `torch.as_tensor` as `as_tensor`."""
    parts = op.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")
