"""The module frames of one step: ranges of weights, inputs and outputs of every module call, by
hooks that are taken off again.

Measured values stay on their device until `finish`; no tensor of the run is kept. Inputs are
measured before the call, since a module may write to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from nanodoc import probing
from nanodoc.accelerator import in_widest
from nanodoc.facts.frames import Frame, FrameTable, FrameTensor
from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import (
    DisableTorchDispatch,
    DisableTorchFunction,
    current_autograd_node,
    mode_stack,
)
from nanodoc.tensors.nested import takes_hooks
from nanodoc.tensors.plain import is_plain, without_values
from nanodoc.trace.half import HalfLog, HalfMode
from nanodoc.trace.spans import Place, calling_places, resolved

look_through(__file__)

_DEEPEST = 6  # levels of nesting in a module's arguments
_MOST_TENSORS = 64  # of one call: a cache of key and value tensors can hold hundreds


class _Measured:
    """One tensor's numbers, on their device or read."""

    __slots__ = ("dtype", "flushed", "shape", "source", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.shape = () if tensor.is_nested else tuple(tensor.shape)
        self.values: list[float] = []
        self.source: int | None = None
        self.flushed: int | None = None
        """Index in the half-precision log of the op that made it."""


class _Open:
    """A module call that has not returned yet."""

    __slots__ = ("entries", "module")

    def __init__(
        self, module: torch.nn.Module, entries: list[tuple[str, _Measured]] | None
    ) -> None:
        self.module, self.entries = module, entries  # no entries: a call that is not recorded


class FrameProbe:
    """A context manager around one step; `finish` then gives the table. A `mode` is active while
    any module is being called."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        prefix: str = "",
        half: HalfLog | None = None,
        mode: HalfMode | None = None,
    ) -> None:
        names = {module: name for name, module in model.named_modules()}
        self._chosen = {module: name for module, name in names.items() if _below(name, prefix)}
        self._half = half
        self._mode = mode
        self._active = False
        self._handles: list[Any] = []
        self._open: list[_Open] = []
        self._frames: list[tuple[str, str, list[tuple[str, _Measured]], Place | None]] = []
        self._pending: list[tuple[_Measured, torch.Tensor]] = []
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, _Measured]] = {}

    def __enter__(self) -> FrameProbe:
        try:
            for module in filter(takes_hooks, self._chosen):
                self._handles.append(
                    module.register_forward_pre_hook(self._enter_module, with_kwargs=True)
                )
                self._handles.append(
                    module.register_forward_hook(self._leave_module, always_call=True)
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._switch(on=False)  # an exception ended the outermost call
        self._open, self._known = [], {}

    def _switch(self, *, on: bool) -> None:
        if self._mode is None or on == self._active:
            return
        self._active = on
        if on:
            self._mode.__enter__()
        elif self._mode in mode_stack():
            self._mode.__exit__(None, None, None)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Also hears of `nanodoc.probe`, besides whoever does already."""
        before = probing.listen(None)

        def record(tensor: Any, label: str) -> None:
            if before is not None:
                before(tensor, label)
            if isinstance(tensor, torch.Tensor):
                self._probed(tensor, str(label)[:200])

        probing.listen(record)
        try:
            yield
        finally:
            probing.listen(before)

    # -- hooks -------------------------------------------------------------------------------------

    @ours
    def _enter_module(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        # activation checkpointing, inside backward
        again = current_autograd_node() is not None
        entries: list[tuple[str, _Measured]] = []
        if not again:
            # whatever is odd about a tensor, the user's run must not feel it
            with contextlib.suppress(Exception), _aside():
                entries += [
                    (name, self._measure(p))
                    for name, p in module.named_parameters(recurse=False)
                    if not without_values(p)
                ]
                entries += [(f"input{path}", self._measure(t)) for path, t in tensors_of(args)]
                entries += [
                    (path.removeprefix("."), self._measure(t)) for path, t in _keywords(kwargs)
                ]
            self._switch(on=True)
        self._open.append(_Open(module, None if again else entries))

    @ours
    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        while self._open and self._open[-1].module is not module:  # calls that an exception ended
            self._open.pop()
        entries = self._open.pop().entries if self._open else None
        if not self._open:
            self._switch(on=False)
        if entries is None or output is None:
            return
        outputs: list[tuple[str, _Measured]] = []
        with contextlib.suppress(Exception), _aside():
            outputs += [
                (f"output{path}", self._measure(t, source=len(self._frames)))
                for path, t in tensors_of(output)
            ]
        self._frames.append((self._chosen[module], type(module).__name__, entries + outputs, None))

    def _probed(self, tensor: torch.Tensor, label: str) -> None:
        own, caller = calling_places(3)
        with _aside():
            self._frames.append((label, "", [("probe", self._measure(tensor))], caller or own))

    # -- measuring ---------------------------------------------------------------------------------

    def _measure(self, tensor: torch.Tensor, source: int | None = None) -> _Measured:
        """Numbers of a tensor, taken once per version of it."""
        known = self._known.get(id(tensor))
        version = 0 if tensor.is_inference() else tensor._version
        if known is not None and known[0]() is tensor and known[1] == version:
            measured = known[2]
            if source is not None and measured.source is None:
                measured.source = source
            return measured
        measured = _Measured(tensor)
        measured.source = source
        if is_plain(tensor) and tensor.numel() and tensor.dtype != torch.bool:
            values = tensor.detach()
            self._take(
                measured,
                torch.view_as_real(values.resolve_conj()) if values.is_complex() else values,
            )
        if self._half is not None:
            measured.flushed = self._half.made(tensor)
        self._known[id(tensor)] = (weakref.ref(tensor), version, measured)
        return measured

    def _take(self, measured: _Measured, values: torch.Tensor) -> None:
        # 8-bit floats have few kernels; float32 holds them exactly
        if values.is_floating_point() and values.element_size() == 1:
            values = values.float()
        low, high = torch.aminmax(values.abs() if values.dtype != torch.uint8 else values)
        if values.is_cpu:  # nothing to wait for
            measured.values = [low.item(), high.item()]
            if not math.isfinite(measured.values[1]):
                measured.values += [int(torch.isnan(values).sum()), int(torch.isinf(values).sum())]
            return
        counts = (
            [torch.isnan(values).sum(), torch.isinf(values).sum()]
            if values.is_floating_point()
            else []
        )
        self._pending.append(
            (measured, torch.stack([in_widest(number) for number in (low, high, *counts)]))
        )

    # -- afterwards --------------------------------------------------------------------------------

    def finish(self, step: int, why: str, most: int) -> FrameTable:
        """Reads everything with one copy per device. The last `most` frames up to the one after the
        first non-finite output."""
        self._read()
        frames = [self._frame(index, *frame) for index, frame in enumerate(self._frames)]
        table = FrameTable(step=step, frames=tuple(frames), why=why)
        bad = table.first_bad()
        end = len(frames) if bad is None else frames.index(bad) + 2
        begin = max(0, end - most)
        return dataclasses.replace(table, frames=tuple(frames[begin:end]), left_out=begin)

    def _read(self) -> None:
        by_device: dict[torch.device, list[tuple[_Measured, torch.Tensor]]] = {}
        for measured, values in self._pending:
            by_device.setdefault(values.device, []).append((measured, values))
        for members in by_device.values():
            read = iter(torch.cat([values for _, values in members]).tolist())
            for measured, values in members:
                measured.values = [next(read) for _ in range(len(values))]
        self._pending = []

    def _frame(
        self,
        index: int,
        name: str,
        kind: str,
        entries: list[tuple[str, _Measured]],
        place: Place | None,
    ) -> Frame:
        span: SourceSpan | None = resolved(place)
        tensors = tuple(self._facts(role, measured, index) for role, measured in entries)
        return Frame(index=index, module=name, module_type=kind, tensors=tensors, location=span)

    def _facts(self, role: str, measured: _Measured, frame: int) -> FrameTensor:
        low, high, nan, inf = (*measured.values, *[None] * 4)[:4]
        flushed = (
            self._half.ops.get(measured.flushed)
            if self._half is not None and measured.flushed is not None
            else None
        )
        return FrameTensor(
            role=role,
            dtype=measured.dtype,
            shape=measured.shape,
            absmin=low,
            absmax=high,
            nan=int(nan or 0),
            inf=int(inf or 0),
            flushed=flushed.flushed / flushed.nonzero
            if flushed is not None and flushed.nonzero
            else None,
            source=measured.source
            if measured.source is not None and measured.source < frame
            else None,
        )


def tensors_of(value: Any, path: str = "", depth: int = 0) -> list[tuple[str, torch.Tensor]]:
    """(path, tensor) of every tensor in nested tuples, lists, mappings, dataclasses and objects
    like a model's output."""
    found: list[tuple[str, torch.Tensor]] = []
    for where, tensor in _walk(value, path, depth):
        found.append((where, tensor))
        if len(found) >= _MOST_TENSORS:
            break
    return found


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if (
        depth >= _DEEPEST
        or value is None
        or isinstance(value, (str, bytes, int, float, torch.nn.Module))
    ):
        return
    for key, item in _items(value):
        yield from _walk(item, path + key, depth + 1)


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):  # transformers' ModelOutput too
        return [
            (f".{key}" if str(key).isidentifier() else f"[{key!r}]", item)
            for key, item in value.items()
        ]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{key}", getattr(value, key)) for key in value._fields]
    if isinstance(value, (tuple, list)):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            (f".{field.name}", getattr(value, field.name, None))
            for field in dataclasses.fields(value)
        ]
    return []


def _keywords(kwargs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for key, value in kwargs.items():
        yield from tensors_of(value, key)


def _below(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(prefix + ".")


class _aside:  # a context manager, named as one
    """Measures below every mode: what is done inside is not recorded. Detached tensors need no grad
    mode."""

    def __enter__(self) -> None:
        self._modes = (DisableTorchDispatch(), DisableTorchFunction())
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *exc: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exc)
