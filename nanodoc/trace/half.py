"""What half precision does to the values of a traced step: how near its largest number they come,
and what it rounds to zero.

Plugged into a `Tracer`. Every op that makes half-precision values is run once more on float32
copies of its inputs; only counts and norms of the comparison are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc import accelerator
from nanodoc.instrument.originals import ours
from nanodoc.instrument.taps import AUTOCAST_ENTERED, AUTOCAST_LEFT, listening
from nanodoc.instrument.torch_private import TorchDispatchMode, current_autograd_node
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.examine import upcast_outputs
from nanodoc.trace.ops import OpInfo, call_op, describe_op, outputs_of, tensors_in, written_by
from nanodoc.trace.spans import Place, calling_places

_HALF = (torch.float16, torch.bfloat16)
_MOST_BYTES = 256 << 20  # float32 copies of one op's result
_MATMULS = (
    "aten.mm",
    "aten.addmm",
    "aten.bmm",
    "aten.baddbmm",
    "aten.convolution",
    "aten.linear",
    "aten.matmul",
)


@dataclass(slots=True)
class HalfOp:
    """What one op's half-precision result was like; counts are 0 where the op was not run again."""

    dtype: str
    absmax: float = 0.0
    nonzero: int = 0
    flushed: int = 0
    lost: float = 0.0
    """Sum of squares of the flushed elements, in float32."""
    total: float = 0.0


@dataclass(slots=True)
class Region:
    """One entered autocast context: the ops from `begin` to `end` ran in it."""

    place: Place | None
    device: str
    dtype: str
    enabled: bool
    nested: bool
    begin: int
    end: int = -1


class HalfLog:
    """The half-precision ops of one traced step, by index."""

    def __init__(self) -> None:
        self._own = False
        self._pending: list[tuple[int, list[torch.Tensor]]] = []
        self._made: dict[int, tuple[int, int]] = {}
        self.ops: dict[int, HalfOp] = {}
        self.floats: list[int] = []
        """Matrix products and convolutions that ran in float32."""
        self.matmuls: list[int] = []
        """All of them."""
        self.regions: list[Region] = []
        self.left_out = 0
        """Ops too large, or not possible, to be run again."""

    # -- told by the tracer ------------------------------------------------------------------------

    def before(self, info: OpInfo, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The op's inputs, copied where it will overwrite them."""
        if info.writes and any(t.dtype == torch.float16 for t in inputs):
            return [tensor.detach().clone() for tensor in inputs]
        return inputs

    def after(
        self,
        index: int,
        info: OpInfo,
        func: Any,
        args: Any,
        kwargs: Any,
        inputs: list[torch.Tensor],
        out: Any,
    ) -> None:
        """The op has run."""
        outputs = outputs_of(out) or (written_by(info, args, kwargs) if info.writes else [])
        half = next((t for t in outputs if t.dtype in _HALF), None)
        if info.name.startswith(_MATMULS):
            self.matmuls.append(index)
        if half is None:
            if info.name.startswith(_MATMULS) and outputs and outputs[0].dtype == torch.float32:
                self.floats.append(index)
            return
        if info.view or info.silent or not half.numel() or not is_plain(half):
            return
        self.ops[index] = HalfOp(str(half.dtype).removeprefix("torch."))
        self._made[half.untyped_storage()._cdata] = (index, half.numel())
        values = half.detach()
        low, high = torch.aminmax(values.abs())
        scalars = [high.float()]
        if half.dtype == torch.float16 and not (half.is_cpu and low.item() > 0):
            scalars += self._compare(values, func, args, kwargs, inputs)
        else:  # no zeros, or a dtype with float32's range: nothing was flushed
            self.ops[index].nonzero = half.numel()
        self._pending.append((index, scalars))

    def _compare(
        self, half: torch.Tensor, func: Any, args: Any, kwargs: Any, inputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        if half.numel() * 4 > _MOST_BYTES:
            self.left_out += 1
            return []
        self._own = True  # running the op again enters an autocast context of ours
        try:
            wide = upcast_outputs(func, args, kwargs, inputs, half.device.type)
        finally:
            self._own = False
        exact = next(
            (t for t in wide or () if t.dtype == torch.float32 and t.shape == half.shape), None
        )
        if exact is None:
            self.left_out += 1
            return []
        flushed = (half == 0) & (exact != 0)
        counts = [
            accelerator.in_widest(torch.count_nonzero(exact)),
            accelerator.in_widest(torch.count_nonzero(flushed)),
        ]
        if exact.is_cpu and not int(counts[1]):
            return counts
        exact = torch.nan_to_num(exact, 0.0, 0.0, 0.0)
        lost = torch.where(flushed, exact, torch.zeros_like(exact))
        # doubles, so that squares of tiny numbers are not rounded away
        return [
            *counts,
            accelerator.in_widest(lost).square().sum(),
            accelerator.in_widest(exact).square().sum(),
        ]

    def made(self, tensor: torch.Tensor) -> int | None:
        """The op that made a half-precision tensor which is alive now."""
        if tensor.dtype not in _HALF or not is_plain(tensor):
            return None
        index, size = self._made.get(tensor.untyped_storage()._cdata, (-1, -1))
        return index if size == tensor.numel() else None

    # -- autocast regions --------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, count: Callable[[], int]) -> Iterator[None]:
        """Around the step: notes every autocast context that is entered. `count` gives the number
        of ops so far."""
        stack: list[Region] = []

        def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
            def __enter__(context: Any) -> Any:
                if self._own:
                    return enter(context)
                own, caller = calling_places(2)
                dtype = str(context.fast_dtype).removeprefix("torch.")
                enabled = bool(context._enabled)
                region = Region(caller or own, context.device, dtype, enabled, bool(stack), count())
                stack.append(region)
                self.regions.append(region)
                return enter(context)

            return __enter__

        def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
            def __exit__(context: Any, *exc: Any) -> Any:
                if stack and not self._own:
                    stack.pop().end = count()
                return leave(context, *exc)

            return __exit__

        try:
            with listening((AUTOCAST_ENTERED, entering), (AUTOCAST_LEFT, leaving)):
                yield
        finally:
            for region in stack:
                region.end = count()

    # -- afterwards --------------------------------------------------------------------------------

    def finish(self) -> None:
        """Reads every number with one copy per device."""
        by_device: dict[torch.device, list[tuple[HalfOp, str, torch.Tensor]]] = {}
        for index, scalars in self._pending:
            for name, value in zip(
                ("absmax", "nonzero", "flushed", "lost", "total"), scalars, strict=False
            ):
                by_device.setdefault(value.device, []).append((self.ops[index], name, value))
        for entries in by_device.values():
            values = torch.stack([accelerator.in_widest(value) for _, _, value in entries]).tolist()
            for (op, name, _), value in zip(entries, values, strict=True):
                setattr(op, name, int(value) if name in ("nonzero", "flushed") else value)
        self._pending = []


class HalfMode(TorchDispatchMode):
    """Tells a `HalfLog` of every forward op, for a step that is not traced."""

    def __init__(self, log: HalfLog) -> None:
        super().__init__()
        self._log = log
        self._count = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Tracer

    @ours
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if current_autograd_node() is not None:
            return call_op(func, args, kwargs)
        info, inputs = describe_op(func), tensors_in((*args, *kwargs.values()))
        kept = self._log.before(info, inputs)
        out = call_op(func, args, kwargs)
        self._log.after(self._count, info, func, args, kwargs, kept, out)
        self._count += 1
        return out
