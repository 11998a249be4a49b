"""Who depends on whom in one step, tensor by tensor: values through every op, gradients only
through autograd.

Below autograd, where the tracer sits, an input still shows `requires_grad`, and an output keeps its
identity until the next op reads it. So the op that made a tensor and the op that reads it both know
whether gradient flows between them.

Invariants: tensors are named by the address of their implementation and storage, never kept (leaves
outside the model excepted, until the trace is done); nothing is written to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from nanodoc.facts.source import SourceSpan
from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.tensors.plain import is_sharded
from nanodoc.trace.spans import Place

# What may be read back from Python: enough for a batch of scalars, too few to matter for a data
# set.
MOST_VALUES = 4096
INSIDE = -2


class Source(NamedTuple):
    """Where one input of an op came from. `producer`: an op's index, −1−bit for a parameter, None
    if nobody saw it made."""

    producer: int | None
    carries: bool
    """Gradient flows back through this use of it."""


_UNKNOWN = Source(None, False)


class Region(NamedTuple):
    """A stretch of code with gradients off, and the line that opened it."""

    kind: str
    """"no_grad", "inference_mode", "set_grad_enabled", "checkpoint", or "" where it is not
    known."""
    place: Place | SourceSpan | None


class Carried(NamedTuple):
    """A tensor with a graph of its own that this step read but did not make."""

    reader: int
    node: str
    impl: int


class FlowLog:
    """Filled by the tracer while the step runs. Bit i stands for parameter i, in masks of Python
    integers."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, torch.Tensor]],
        now: Callable[[], Iterable[tuple[str, torch.Tensor]]] | None = None,
    ) -> None:
        """`now`: the parameters under the same names while the step runs. FSDP2 puts whole ones of
        its own making in the place of each module's parts as long as this module computes."""
        self.names: list[str] = []
        self.sources: list[tuple[Source, ...]] = []
        self.grad_off: list[int] = []
        """Per op: the index of the region it ran in, −1 with gradients on, `INSIDE` a custom
        function's forward."""
        self.regions: list[Region] = [Region("", None)]
        self.foreign: dict[int, torch.Tensor] = {}
        """Trainable leaves that are no parameter of the model, by bit."""
        self.carried: list[Carried] = []
        self.frozen_at: dict[int, Place | None] = {}
        """Parameters whose requires_grad was switched off during the step, by bit."""
        self.frozen_by: dict[int, Place] = {}
        """The call of the helper that did it, where the helper was told to by its argument."""
        self.marks: dict[str, Source] = {}
        self.maybe: dict[int, tuple[float, ...]] = {}
        """Ops that read Python numbers after an export, with those numbers: whether they come from
        it, an experiment tells."""
        self.proven: dict[int, list[int]] = {}
        """The exports that such an op was shown to depend on."""
        self.single: set[int] = set()
        """Ops whose output has one element."""
        self.exports: list[int] = []
        self.region = -1
        self.region_is_nested = False
        """The region was opened where autograd had switched gradients off already, inside a custom
        function's forward."""
        self._impls: dict[int, tuple[int | None, int]] = {}
        self._values: dict[float, int] = {}
        self._memory: dict[int, int] = {}
        self._now = now
        self._unknown: set[int] = set()
        for name, parameter in parameters:
            self._impls[parameter._cdata] = (None, -1 - len(self.names))
            self.names.append(name)

    # -- the hot path ------------------------------------------------------------------------------

    def begin(self) -> None:
        """The next op begins: its place in the lists, before another thread's op takes it. An op of
        backward keeps it as it is, for gradients are followed there by autograd itself."""
        self.sources.append(())
        self.grad_off.append(-1)

    def note(
        self,
        index: int,
        inputs: Sequence[torch.Tensor],
        storages: Sequence[int | None],
        extra: Sequence[int] = (),
    ) -> None:
        """Op `index` is about to read `inputs`; `extra` are further producers, of values that came
        through Python."""
        found = [
            self._source(index, tensor, storage)
            for tensor, storage in zip(inputs, storages, strict=True)
        ]
        found.extend(Source(producer, False) for producer in extra)
        self.sources[index] = tuple(found)
        if torch.is_grad_enabled():
            # left with the custom function it was opened in; autocast's casts don't end a region
            if self.region_is_nested:
                self.region, self.region_is_nested = -1, False
        else:
            # nobody in Python switched gradients off: autograd does so inside a custom function's
            # forward
            self.grad_off[index] = self.region if self.region >= 0 else INSIDE

    def made(self, index: int, tensor: torch.Tensor, storage: int | None) -> None:
        """`tensor` is an output of op `index`."""
        impl = tensor._cdata
        known = self._impls.get(impl)
        if tensor.numel() == 1:
            self.single.add(index)
        if known is None or known[1] >= 0:  # a parameter written in place stays the parameter
            self._impls[impl] = (storage, index)

    def mark(self, name: str, tensor: torch.Tensor, storage: int | None) -> None:
        """Remembers where `tensor` came from under a name."""
        self.marks[name] = self._source(-1, tensor, storage)

    def producer(self, tensor: torch.Tensor) -> int | None:
        """The op that made `tensor`, −1−bit for a parameter, None if it isn't known."""
        known = self._impls.get(tensor._cdata)
        return None if known is None else known[1]

    def forget(self, tensor: torch.Tensor) -> None:
        """`tensor` is new, whatever had its address before."""
        self._impls.pop(tensor._cdata, None)

    def _source(self, index: int, tensor: torch.Tensor, storage: int | None) -> Source:
        needs = tensor.requires_grad
        known = self._impls.get(tensor._cdata)
        if known is not None and known[1] < 0:
            return Source(known[1], needs)
        inner = needs and not tensor.is_leaf
        if needs and not inner and self._now is not None and self._stands_for(tensor):
            return Source(self._impls[tensor._cdata][1], True)
        if known is not None and known[0] == storage:
            return Source(known[1], inner)
        if needs and not inner and isinstance(tensor, torch.nn.Parameter):
            bit = len(self.names)
            self.names.append("")
            self.foreign[bit] = tensor
            self._impls[tensor._cdata] = (None, -1 - bit)
            return Source(-1 - bit, True)
        if inner and index >= 0:
            self.carried.append(Carried(index, type(tensor.grad_fn).__name__, tensor._cdata))
        return Source(None, True) if inner else _UNKNOWN

    def _stands_for(self, tensor: torch.Tensor) -> bool:
        """A leaf of this step is one of the parameters, which has another tensor in its place."""
        if not isinstance(tensor, torch.nn.Parameter) or tensor._cdata in self._unknown:
            return False
        assert self._now is not None
        bits = {name: bit for bit, name in enumerate(self.names)}
        with DisableTorchFunction():
            for name, parameter in self._now():
                if name in bits and not is_sharded(parameter):
                    self._impls[parameter._cdata] = (None, -1 - bits[name])
        known = self._impls.get(tensor._cdata)
        if known is not None and known[1] < 0:
            return True
        self._unknown.add(tensor._cdata)
        return False

    # -- values that pass through Python -----------------------------------------------------------

    def exported(self, index: int, values: Iterable[Any], memory: int | None = None) -> None:
        """Op `index` handed values to Python: numbers, or memory at an address."""
        self.exports.append(index)
        if memory is not None:
            self._memory[memory] = index
        for value in values:
            if (
                isinstance(value, float)
                and not value.is_integer()
                and len(self._values) < MOST_VALUES * 16
            ):
                self._values[value] = index

    def through_python(
        self, index: int, values: Iterable[Any], memory: int | None = None
    ) -> list[int]:
        """The exports that Python numbers read by op `index` are equal to. Where none is, the op is
        noted in `maybe`."""
        if memory is not None and memory in self._memory:
            return [self._memory[memory]]
        numbers = [value for value in values if type(value) is float]
        matched = {self._values[value] for value in numbers if value in self._values}
        if numbers and not matched:
            self.maybe[index] = tuple(numbers)
        return sorted(matched)
