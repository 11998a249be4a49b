"""Where the gradient path to a parameter ends: the op whose input carries gradient and whose output should but doesn't.

Two masks of parameters per op, filled in the order the ops ran: `values`, those its output depends on, and `gradients`,
those autograd would lead back to from it. A parameter that reaches the loss in the first sense only is cut off, and the
cut is where its bit is in an op's second mask but the use of that op's output on the way to the loss carries nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from nanodoc.graph_evidence import ModuleEdge
from nanodoc.trace.flow import FlowLog, Source
from nanodoc.trace.graph import StepTrace
from nanodoc.trace.ops import plain_name

# Their derivative is zero everywhere: gradient flows, and is nothing.
FLAT = {"round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside"}


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where gradient paths end. `orphans` is a mask of parameters; `index` the op, `reader` who read its output."""

    index: int
    reader: int | None
    orphans: int
    ops: tuple[int, ...]


class GradFlow:
    """The flow of one traced step up to its losses."""

    def __init__(self, trace: StepTrace, flow: FlowLog, losses: Iterable[str], *, flat: bool = False) -> None:
        self.trace = trace
        self.flow = flow
        self.losses = [name for name in losses if name in flow.marks]
        self._flat = flat
        """Whether an op with a derivative that is zero everywhere counts as the end of a path."""

    # -- edges -----------------------------------------------------------------------------------------------------

    def producers(self, index: int, position: int) -> Iterator[int]:
        """Who made what input `position` of op `index` holds: the op that made the tensor, and later writers of its memory."""
        source = self.flow.sources[index][position]
        record = self.trace.records[index]
        if position < len(record.inputs):
            yield from self._of(source, self.trace.writers(record.inputs[position]))
        elif source.producer is not None:
            yield source.producer
        if position == 0:
            yield from self.flow.proven.get(index, ())

    def _of(self, source: Source, writers: Iterator[int]) -> Iterator[int]:
        made = source.producer
        if made is not None:
            yield made
            if made < 0:
                return
        for writer in writers:
            if made is not None and writer <= made:
                return
            if writer >= 0:
                yield writer
            else:
                bit = self._leaf_bits.get(self.trace.leaf_name(writer))
                if bit is not None and made is None:
                    yield -1 - bit

    def loss_producers(self, name: str) -> Iterator[int]:
        yield from self._of(self.flow.marks[name], self.trace.writers(self.trace.marks[name]))

    @cached_property
    def _leaf_bits(self) -> dict[str, int]:
        return {f"param:{name}": bit for bit, name in enumerate(self.flow.names) if name}

    # -- masks -----------------------------------------------------------------------------------------------------

    @cached_property
    def masks(self) -> tuple[list[int], list[int]]:
        """Per op: the parameters its output depends on, and those that gradient through it would reach."""
        values: list[int] = []
        gradients: list[int] = []
        for index, record in enumerate(self.trace.records):
            value = gradient = 0
            if record.phase == "forward":
                for position, source in enumerate(self.flow.sources[index]):
                    for producer in self.producers(index, position):
                        v, g = self._mask(producer, values, gradients)
                        value |= v
                        gradient |= g if source.carries else 0
            values.append(value)
            gradients.append(gradient)
        return values, gradients

    def _mask(self, producer: int, values: list[int], gradients: list[int]) -> tuple[int, int]:
        if producer < 0:
            bit = 1 << (-1 - producer)
            return bit, bit
        if producer >= len(values):  # a later writer of the same memory: nothing this use could have read
            return 0, 0
        return values[producer], 0 if self._ends(producer) else gradients[producer]

    def _ends(self, producer: int) -> bool:
        return self._flat and plain_name(self.trace.records[producer].info.name) in FLAT

    @cached_property
    def loss_values(self) -> int:
        """The parameters that the losses depend on by value."""
        return self._at_losses(0)

    @cached_property
    def loss_gradients(self) -> int:
        """The parameters that autograd can reach from the losses."""
        return self._at_losses(1)

    def _at_losses(self, which: int) -> int:
        found = 0
        for name in self.losses:
            if which and not self.flow.marks[name].carries:
                continue
            for producer in self.loss_producers(name):
                found |= self._mask(producer, *self.masks)[which]
        return found

    @cached_property
    def used(self) -> int:
        """The parameters that any op read."""
        found = 0
        for index, record in enumerate(self.trace.records):
            if record.phase != "forward":
                continue
            for position in range(len(self.flow.sources[index])):
                for producer in self.producers(index, position):
                    if producer < 0:
                        found |= 1 << (-1 - producer)
        return found

    # -- cuts ------------------------------------------------------------------------------------------------------

    @cached_property
    def live(self) -> set[int]:
        """The ops whose output the losses depend on."""
        found: set[int] = set()
        queue = [p for name in self.losses for p in self.loss_producers(name) if p >= 0]
        while queue:
            index = queue.pop()
            if index in found or self.trace.records[index].phase != "forward":
                continue
            found.add(index)
            for position in range(len(self.flow.sources[index])):
                queue.extend(p for p in self.producers(index, position) if 0 <= p < index)
        return found

    def cuts(self, wanted: int) -> list[Cut]:
        """Every cut that keeps gradient from a parameter in `wanted`, in the order the ops ran."""
        _, gradients = self.masks
        found: dict[int, Cut] = {}

        def look(producer: int, reader: int | None) -> None:
            orphans = gradients[producer] & wanted
            if orphans and producer not in found:
                found[producer] = Cut(producer, reader, orphans, (producer,))

        for index in sorted(self.live):
            for position, source in enumerate(self.flow.sources[index]):
                for producer in self.producers(index, position):
                    if 0 <= producer < index and (not source.carries or self._ends(producer)):
                        look(producer, index)
        for name in self.losses:
            for producer in self.loss_producers(name):
                if producer >= 0 and (not self.flow.marks[name].carries or self._ends(producer)):
                    look(producer, None)
        return self._without_bypassed([found[index] for index in sorted(found)])

    def _without_bypassed(self, cuts: list[Cut]) -> list[Cut]:
        """Leaves out cuts that gradient gets around, only to be stopped by another one further on: in `y = x * (x > 0)` before
        `y.detach()` the comparison keeps nothing from anybody."""
        bits = {cut.index: 1 << bit for bit, cut in enumerate(cuts)}
        behind: list[int] = []  # per op, the cuts its inputs depend on
        for index in range(len(self.trace.records)):
            mask = 0
            if index in self.live:
                for position in range(len(self.flow.sources[index])):
                    for producer in self.producers(index, position):
                        if 0 <= producer < index:
                            mask |= behind[producer] | bits.get(producer, 0)
            behind.append(mask)
        gradients = self.masks[1]

        def bypassed(cut: Cut) -> bool:
            return any(behind[o.index] & bits[cut.index] and not cut.orphans & ~gradients[o.index] for o in cuts if o is not cut)

        return [cut for cut in cuts if not bypassed(cut)]

    def frozen(self, wanted: int) -> int:
        """Parameters in `wanted` that the losses depend on and that were read with requires_grad off."""
        found = 0
        for index in self.live:
            for position, source in enumerate(self.flow.sources[index]):
                if not source.carries:
                    for producer in self.producers(index, position):
                        if producer < 0:
                            found |= 1 << (-1 - producer)
        return found & wanted


def module_edges(flow: GradFlow, cuts: set[int]) -> tuple[ModuleEdge, ...]:
    """Who hands tensors to whom on the way to the losses, by module path; `cuts` are the ops where paths end."""
    records, modules = flow.trace.records, flow.trace.modules
    found: dict[tuple[str, str], tuple[bool, bool]] = {}

    def path(index: int) -> str:
        module = records[index].module
        return modules[module][0] if module >= 0 else ""

    def add(source: str, target: str, carries: bool, cut: bool) -> None:
        before = found.get((source, target), (False, False))
        found[source, target] = (before[0] or carries, before[1] or cut)

    for index in sorted(flow.live):
        record = records[index]
        for position, source in enumerate(flow.flow.sources[index]):
            for producer in flow.producers(index, position):
                if producer >= 0 and (path(producer) != path(index) or producer in cuts):
                    add(path(producer), path(index), source.carries, producer in cuts and not source.carries)
            if position < len(record.inputs) and source.producer is None:
                for writer in flow.trace.writers(record.inputs[position]):
                    if writer < 0 and flow.trace.leaf_name(writer).startswith("batch"):
                        add("batch", path(index), False, False)
    for name in flow.losses:
        for producer in flow.loss_producers(name):
            if producer >= 0:
                carries = flow.flow.marks[name].carries
                add(path(producer), "loss", carries, producer in cuts and not carries)
    return tuple(ModuleEdge(source=s, target=t, carries=c, cut=x) for (s, t), (c, x) in found.items())
