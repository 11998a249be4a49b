"""Two runs of one step from the same start, op by op, on digests: which op is the first to come to
something else, and was it given something else?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import TorchDispatchMode
from nanodoc.trace.frame_variables import names_in, users_frames
from nanodoc.trace.ops import describe_op, outputs_of, tensors_in, written_by
from nanodoc.trace.spans import Place, calling_places, resolved

look_through(__file__)

_MOST_OPS = 200_000
_MOST_NAMES = 3
_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class OpDigest:
    """One op: what it was given and what it made."""

    name: str
    numbers: str
    """Its arguments that are no tensors, as text."""
    given: tuple[int, ...]
    made: tuple[int, ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class Apart:
    """The first op that came to something else in the second run."""

    kind: Literal["draws", "given", "another op"]
    """From the same inputs: it draws, or adds in another order each time. Was given something else.
    Is another op, so that the step took another way."""
    op: str
    place: SourceSpan | None
    names: tuple[str, ...] = ()
    """The variables that hold what it was given in the second run."""

    @property
    def said(self) -> str:
        where = f"`{self.op}`" + (f" at {self.place.place}" if self.place is not None else "")
        if self.kind == "draws":
            return f"it differs by chance, first in {where}, which got the same inputs"
        if self.kind == "another op":
            return f"the step took another way each time it was run, first at {where}"
        held = f" ({', '.join(f'`{name}`' for name in self.names)})" if self.names else ""
        return (
            "it reads what changes from run to run and is not put back, as a clock, a file, or a "
            f"library's state: first {where} got another value{held}"
        )


class OpDigests(TorchDispatchMode):
    """Writes down every op of a run; with the ops of an earlier run, holds them against these up to
    the first that differs, `apart`."""

    def __init__(self, earlier: Sequence[OpDigest] | None = None) -> None:
        super().__init__()
        self.ops: list[OpDigest] = []
        self.apart: Apart | None = None
        self._earlier = earlier
        self._unwritten: set[int] = set()  # addresses of memory that nothing has been written to

    @ours
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.apart is not None or len(self.ops) >= _MOST_OPS:
            return func(*args, **(kwargs or {}))
        inputs = tensors_in((*args, *(kwargs or {}).values()))
        given = tuple(0 if t.data_ptr() in self._unwritten else _digest(t) for t in inputs)
        out = func(*args, **(kwargs or {}))
        info, made = describe_op(func), outputs_of(out)
        written = [*written_by(info, args, kwargs), *made]
        if info.silent:
            self._unwritten.update(t.data_ptr() for t in made)
            return out
        self._unwritten.difference_update(t.data_ptr() for t in written if not info.view)
        own, caller = calling_places(1)
        place = caller or own
        digests = tuple(_digest(t) for t in written)
        op = OpDigest(info.name, _numbers(args, kwargs), given, digests, place)
        if self._earlier is not None:
            self._hold_against(op, inputs, args)
        self.ops.append(op)
        return out

    def _hold_against(self, op: OpDigest, inputs: list[torch.Tensor], args: Any) -> None:
        assert self._earlier is not None
        at = len(self.ops)
        before = self._earlier[at] if at < len(self._earlier) else None
        place, name = resolved(op.place), op.name.split(".")[1] if "." in op.name else op.name
        if before is None or before.name != op.name:
            self.apart = Apart("another op", name, place)
        elif (before.given, before.numbers) != (op.given, op.numbers):
            pairs = zip(inputs, before.given, op.given, strict=False)
            values: list[Any] = [value for value, then, now in pairs if then != now]
            if before.numbers != op.numbers:
                values += [value for value in args if isinstance(value, (int, float))]
            self.apart = Apart("given", name, place, tuple(_holding(values))[:_MOST_NAMES])
        elif before.made != op.made:
            self.apart = Apart("draws", name, place)


def _digest(tensor: torch.Tensor) -> int:
    """The same for the same bits; 0 where they can't be read."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta" or not tensor.numel():
        return 0
    values = tensor.detach().contiguous()
    if values.is_complex():
        values = torch.view_as_real(values)
    kind = _AS_INTEGERS.get(values.element_size())
    if kind is None:
        return 0
    bits = values.reshape(-1).view(kind).to(torch.int64)
    places = torch.arange(1, len(bits) + 1, device=bits.device)
    return int((bits * places).sum())  # wraps around


def _numbers(args: Any, kwargs: Any) -> str:
    values = [*args, *(kwargs or {}).values()]
    return repr([v for v in values if isinstance(v, (int, float, bool, str, complex))])


def _holding(values: Sequence[Any]) -> Iterator[str]:
    """The names, in the user's frame and in its `self`, of what is one of the values."""
    frame = next(users_frames(), None)
    if frame is None:
        return
    named = names_in(frame)
    own = getattr(named.get("self"), "__dict__", {})
    named |= {f"self.{name}": value for name, value in own.items()}
    for name, held in named.items():
        if any(held is value or _shares(held, value) for value in values):
            yield name


def _shares(held: Any, value: Any) -> bool:
    """They are one number, or views of one memory."""
    if isinstance(held, torch.Tensor) and isinstance(value, torch.Tensor):
        return bool(held.numel() and held.data_ptr() == value.data_ptr())
    return type(held) in (int, float) and type(held) is type(value) and held == value
