"""Where the gradient path to a parameter ends: the op whose input carries gradient and whose output
should but doesn't.

Two masks of parameters per op, filled in the order the ops ran: `values`, those its output depends
on, and `gradients`, those autograd would lead back to from it. A parameter that reaches the loss in
the first sense only is cut off, and the cut is where its bit is in an op's second mask but the use
of that op's output on the way to the loss carries nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from nanodoc.facts.graph import ModuleEdge
from nanodoc.trace.flow import INSIDE, FlowLog, Source
from nanodoc.trace.graph import StepTrace
from nanodoc.vocabulary.calls import ADDITIONS, FACTORS, REDUCTIONS
from nanodoc.vocabulary.names import op_name
from nanodoc.vocabulary.ops import FLAT

_ADDS = frozenset((*ADDITIONS, *REDUCTIONS, "rsub", "stack", "cat"))
_LINEAR = _ADDS | {
    *FACTORS,
    "neg",
    "view",
    "reshape",
    "squeeze",
    "unsqueeze",
    "clone",
    "to_copy",
    "alias",
}


@dataclass(frozen=True, slots=True)
class Cut:
    """One place where gradient paths end. `orphans` is a mask of parameters; `index` the op,
    `reader` who read its output."""

    index: int
    reader: int | None
    orphans: int


class GradFlow:
    """The flow of one traced step up to its losses."""

    def __init__(
        self, trace: StepTrace, flow: FlowLog, losses: Iterable[str], *, flat: bool = False
    ) -> None:
        self.trace = trace
        self.flow = flow
        self.losses = [name for name in losses if name in flow.marks]
        self._flat = flat
        """Whether an op with a derivative that is zero everywhere counts as the end of a path."""

    # -- edges -------------------------------------------------------------------------------------

    def producers(self, index: int, position: int) -> Iterator[int]:
        """Who made what input `position` of op `index` holds: the op that made the tensor, and
        later writers of its memory."""
        source = self.flow.sources[index][position]
        record = self.trace.records[index]
        if position < len(record.inputs):
            yield from self._of(source, self.trace.writers(record.inputs[position]))
        elif source.producer is not None:
            yield source.producer

    def through_python(self, index: int) -> list[int]:
        """The exports that op `index` was shown to depend on; no gradient comes that way."""
        return [export for export in self.flow.proven.get(index, ()) if export < index]

    def carries(self, index: int, source: Source) -> bool:
        """Gradient flows back through this input of op `index`. A custom function is one op: what
        happens inside its forward is its backward's business."""
        return source.carries or self.flow.grad_off[index] == INSIDE

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

    # -- masks -------------------------------------------------------------------------------------

    @cached_property
    def masks(self) -> tuple[list[int], list[int]]:
        """Per op: the parameters its output depends on, and those that gradient through it would
        reach."""
        values: list[int] = []
        gradients: list[int] = []
        for index, record in enumerate(self.trace.records):
            value = gradient = 0
            if record.phase == "forward" and not record.info.like:
                for position, source in enumerate(self.flow.sources[index]):
                    for producer in self.producers(index, position):
                        v, g = self._mask(producer, values, gradients)
                        value |= v
                        gradient |= g if self.carries(index, source) else 0
                for export in self.through_python(index):
                    value |= values[export]
            values.append(value)
            gradients.append(gradient)
        return values, gradients

    def _mask(self, producer: int, values: list[int], gradients: list[int]) -> tuple[int, int]:
        if producer < 0:
            bit = 1 << (-1 - producer)
            return bit, bit
        # a later writer of the same memory: nothing this use could have read
        if producer >= len(values):
            return 0, 0
        return values[producer], 0 if self.ends(producer) else gradients[producer]

    def ends(self, producer: int) -> bool:
        """The op's derivative is zero everywhere, and such ops count as ends here."""
        return self._flat and op_name(self.trace.records[producer].info.name) in FLAT

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

    # -- cuts --------------------------------------------------------------------------------------

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
            queue.extend(self.through_python(index))
        return found

    def cuts(self, wanted: int) -> list[Cut]:
        """Every cut that keeps gradient from a parameter in `wanted`, in the order the ops ran."""
        _, gradients = self.masks
        found: dict[int, Cut] = {}

        def look(producer: int, reader: int | None) -> None:
            orphans = gradients[producer] & wanted
            if orphans and producer not in found:
                found[producer] = Cut(producer, reader, orphans)

        for index in sorted(self.live):
            for position, source in enumerate(self.flow.sources[index]):
                for producer in self.producers(index, position):
                    if 0 <= producer < index and (
                        not self.carries(index, source) or self.ends(producer)
                    ):
                        look(producer, index)
            for export in self.through_python(index):
                look(export, index)
        for name in self.losses:
            for producer in self.loss_producers(name):
                if producer >= 0 and (not self.flow.marks[name].carries or self.ends(producer)):
                    look(producer, None)
        return self._without_bypassed([found[index] for index in sorted(found)])

    def adds_numbers(self, numbers: Iterable[int]) -> bool:
        """A Python number of unknown origin is added to a sum of single numbers on the way to a
        loss."""
        wanted = {i for i in numbers if i in self.live and i in self.flow.single}
        return any(
            op_name(self.trace.records[i].info.name) in _ADDS | {"lift_fresh"} for i in wanted
        )

    def dead_terms(self) -> list[tuple[int, Cut]]:
        """Terms added to a loss that depend on parameters and carry no gradient: (the adding op,
        where the term's path ends)."""
        return [
            (index, cut) for index, start in self._dead for cut in self._ends_of_term(start)[:1]
        ]

    @cached_property
    def in_dead_terms(self) -> set[int]:
        """The ops where the paths of such terms end, all of them."""
        return {cut.index for _, start in self._dead for cut in self._ends_of_term(start)}

    @cached_property
    def _dead(self) -> list[tuple[int, int]]:
        """(the adding op, the op that makes the term)

        Followed through sums of single numbers only. A term that is detached while the same tensor
        also enters the loss with its gradient changes the loss's value and not its gradient on
        purpose; it is left out.
        """
        found: list[tuple[int, int]] = []
        queue = [
            p
            for name in self.losses
            if self.flow.marks[name].carries
            for p in self.loss_producers(name)
            if p >= 0
        ]
        seen: set[int] = set()
        while queue:
            index = queue.pop()
            name = op_name(self.trace.records[index].info.name)
            if (
                index in seen
                or name not in _LINEAR
                or (index not in self.flow.single and name != "stack")
            ):
                continue
            seen.add(index)
            for export in self.through_python(index) if name in _ADDS else ():
                found.append((index, export))
            for position, source in enumerate(self.flow.sources[index]):
                for producer in self.producers(index, position):
                    if not 0 <= producer < index:
                        continue
                    if self.carries(index, source):
                        queue.append(producer)
                    elif (
                        name in _ADDS
                        and self.masks[0][producer]
                        and (
                            producer in self.flow.single
                            or position >= len(self.trace.records[index].inputs)
                        )
                    ):
                        found.append((index, producer))
        return found

    def _ends_of_term(self, start: int) -> list[Cut]:
        """The cuts behind a term without gradient, those through which most parameters are lost
        first."""
        gradients = self.masks[1]
        cuts: dict[int, Cut] = {}
        queue, seen = [start], set()
        while queue:
            index = queue.pop()
            if index in seen:
                continue
            seen.add(index)
            if gradients[index]:  # its own inputs carry gradient, its output doesn't
                cuts[index] = Cut(index, None, gradients[index])
                continue
            for position in range(len(self.flow.sources[index])):
                queue.extend(p for p in self.producers(index, position) if 0 <= p < index)
            queue.extend(self.through_python(index))
        return sorted(cuts.values(), key=lambda cut: (-cut.orphans.bit_count(), cut.index))

    def also_carried(self, cut: Cut) -> bool:
        """The single number that the cut reads enters the loss with its gradient as well: `l -
        l.detach()`."""
        for source in self.flow.sources[cut.index]:
            if source.producer not in self.flow.single:
                continue
            for other in self.live:
                if other != cut.index and any(
                    s.producer == source.producer and self.carries(other, s)
                    for s in self.flow.sources[other]
                ):
                    return True
        return False

    def _without_bypassed(self, cuts: list[Cut]) -> list[Cut]:
        """Leaves out cuts that gradient gets around, only to be stopped by another one further on:
        in `y = x * (x > 0)` before `y.detach()` the comparison keeps nothing from anybody."""
        bits = {cut.index: 1 << bit for bit, cut in enumerate(cuts)}
        behind: list[int] = []  # per op, the cuts its inputs depend on
        for index in range(len(self.trace.records)):
            mask = 0
            if index in self.live:
                for position in range(len(self.flow.sources[index])):
                    for producer in self.producers(index, position):
                        if 0 <= producer < index:
                            mask |= behind[producer] | bits.get(producer, 0)
                for export in self.through_python(index):
                    mask |= behind[export] | bits.get(export, 0)
            behind.append(mask)
        gradients = self.masks[1]

        def bypassed(cut: Cut) -> bool:
            return any(
                behind[o.index] & bits[cut.index] and not cut.orphans & ~gradients[o.index]
                for o in cuts
                if o is not cut
            )

        return [cut for cut in cuts if not bypassed(cut)]

    def frozen(self, wanted: int) -> int:
        """Parameters in `wanted` that the losses depend on and that were read with requires_grad
        off."""
        found = 0
        for index in self.live:
            for position, source in enumerate(self.flow.sources[index]):
                if not source.carries:
                    for producer in self.producers(index, position):
                        if producer < 0:
                            found |= 1 << (-1 - producer)
        return found & wanted


def module_edges(flow: GradFlow, cuts: set[int]) -> tuple[ModuleEdge, ...]:
    """Who hands tensors to whom on the way to the losses, by module path; `cuts` are the ops where
    paths end."""
    found: dict[tuple[str, str], tuple[bool, bool]] = {}
    for source, target, carries, cut in _handed_over(flow, cuts):
        before = found.get((source, target), (False, False))
        found[source, target] = (before[0] or carries, before[1] or cut)
    return tuple(
        ModuleEdge(source=s, target=t, carries=c, cut=x) for (s, t), (c, x) in found.items()
    )


def _handed_over(flow: GradFlow, cuts: set[int]) -> Iterator[tuple[str, str, bool, bool]]:
    """(source, target, whether a gradient comes back, whether it is cut there) of every tensor that
    one module hands to another, to it by the batch, or to a loss."""
    records, modules = flow.trace.records, flow.trace.modules

    def path(index: int) -> str:
        module = records[index].module
        return modules[module][0] if module >= 0 else ""

    for index in sorted(flow.live):
        record = records[index]
        for position, source in enumerate(flow.flow.sources[index]):
            for producer in flow.producers(index, position):
                if producer >= 0 and (path(producer) != path(index) or producer in cuts):
                    carries = flow.carries(index, source)
                    yield path(producer), path(index), carries, producer in cuts and not carries
            if position < len(record.inputs) and source.producer is None:
                for writer in flow.trace.writers(record.inputs[position]):
                    if writer < 0 and flow.trace.leaf_name(writer).startswith("batch"):
                        yield "batch", path(index), False, False
    for name in flow.losses:
        for producer in flow.loss_producers(name):
            if producer >= 0:
                carries = flow.flow.marks[name].carries
                yield path(producer), "loss", carries, producer in cuts and not carries
