"""What a cut is: its kind, its line or region, and the parameters it orphans."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from nanodoc.examination.followed_step import FollowedStep
from nanodoc.facts.graph import CutFacts
from nanodoc.facts.ops import OpFacts
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.cuts import Cut, GradFlow
from nanodoc.trace.flow import Region
from nanodoc.trace.spans import Place, resolve
from nanodoc.vocabulary.calls import COMPARISONS
from nanodoc.vocabulary.names import op_name

_DECISIONS = (
    *COMPARISONS,
    "isclose",
    "logical_and",
    "logical_or",
    "logical_not",
    "bitwise_and",
    "bitwise_or",
)


def _mask_of(members: list[Cut]) -> int:
    """Whatever any of them keeps from its gradient."""
    mask = 0
    for cut in members:
        mask |= cut.orphans
    return mask


class CutReader:
    """Reads the cuts of one followed step."""

    def __init__(self, step: FollowedStep, gradient: GradFlow) -> None:
        self._step = step
        self._gradient = gradient

    def mask(self, names: set[str]) -> int:
        """The mask of parameters by name."""
        return sum(
            1 << bit for bit, name in enumerate(self._step.flow.names) if name and name in names
        )

    def names(self, mask: int) -> tuple[str, ...]:
        """The names of the parameters in a mask."""
        return tuple(
            name for bit, name in enumerate(self._step.flow.names) if name and mask >> bit & 1
        )

    def cuts(self, orphans: int) -> list[CutFacts]:
        """One fact per line or region, chosen so that together they explain every orphan."""
        groups: dict[Any, list[Cut]] = {}
        for cut in self._gradient.cuts(orphans):
            groups.setdefault(self._site_key(cut.index), []).append(cut)

        thrown_away = [_mask_of(each) for each in groups.values() if self._is_detached(each)]

        def rank(members: list[Cut]) -> tuple[int, bool, int, int]:
            mask = _mask_of(members)
            # what a term needs that has gradient otherwise, it may be kept from on purpose
            living = all(cut.index not in self._gradient.in_dead_terms for cut in members)
            # who acts without gradients, and computes the same again with them, means the first
            in_region = self._step.flow.grad_off[members[0].index] >= 0
            means_it = in_region and any(not mask & ~other for other in thrown_away)
            order = 2 if means_it else int(self._is_detached(members))
            return (-mask.bit_count(), living, order, members[0].index)

        found: list[CutFacts] = []
        left = orphans
        for members in sorted(groups.values(), key=rank):
            mask = _mask_of(members)
            if not mask & left:
                continue
            left &= ~mask
            first = next(
                (cut for cut in members if not self._step.trace.records[cut.index].info.view),
                members[0],
            )
            kind, region = self._kind(first)
            found.append(
                CutFacts(
                    op=self._step.trace.facts(first.index),
                    kind=kind,
                    region_kind=region.kind if region else "",
                    region=span_of(region.place) if region else None,
                    orphans=self.names(mask),
                )
            )
        return found

    def _is_detached(self, members: list[Cut]) -> bool:
        """By hand, where gradients are on."""
        index = members[0].index
        name = op_name(self._step.trace.records[index].info.name)
        return name in ("detach", "alias") and self._step.flow.grad_off[index] < 0

    def dead_terms(self) -> Iterator[CutFacts]:
        """Terms of the loss that depend on parameters and carry no gradient, one per line."""
        seen = set()
        for index, cut in self._gradient.dead_terms():
            kind, region = self._kind(cut)
            kind = "detach" if kind == "rewrapped" else kind  # of the loss itself, not of a term
            key = self._site_key(cut.index)
            if key in seen or (kind == "detach" and self._gradient.also_carried(cut)):
                continue
            seen.add(key)
            added = self._step.trace.facts(index)
            yield CutFacts(
                op=self._step.trace.facts(cut.index),
                kind=kind,
                region_kind=region.kind if region else "",
                region=span_of(region.place) if region else None,
                orphans=self.names(cut.orphans),
                added_at=added.location,
                added_by_library=added.called_from is not None,
            )

    def _site_key(self, index: int) -> Any:
        """Cuts of one region, and of one call, are one."""
        off = self._step.flow.grad_off[index]
        if off > 0:
            region = self._step.flow.regions[off]
            return ("region", region.place)
        if off == 0:
            return ("region", None)
        place = self._step.trace.records[index].place
        return ("line", place[0], place[1]) if place else ("op", index)

    def _kind(self, cut: Cut) -> tuple[str, Region | None]:
        """What sort of cut it is (see `CutFacts.kind`), with its region."""
        record, flow = self._step.trace.records[cut.index], self._step.flow
        name = op_name(record.info.name)
        off = flow.grad_off[cut.index]
        if off >= 0:
            return "region", flow.regions[off]
        if name in ("detach", "alias"):
            if cut.reader is None:
                return "rewrapped", None
            if self._leaves_torch(cut.index):
                return "numpy", None
            span = resolve(*record.place) if record.place else None
            return ("data" if span is not None and span.code.count(".data") else "detach"), None
        if record.info.name.startswith(("torch.", "Tensor.")):
            kinds = {"tolist": "item", "numpy": "numpy", "__array__": "numpy", "array": "numpy"}
            return (
                "item" if name in ("item", "float", "int", "index") else kinds.get(name, "rebuilt")
            ), None
        if name == "local_scalar_dense":
            return "item", None
        if name in _DECISIONS:
            return "comparison", None
        if name in ("to_copy", "to", "long", "int"):
            return "integer", None
        if record.info.writes:
            return "in-place", None
        return "no-derivative", None

    def _leaves_torch(self, index: int) -> bool:
        """A detached tensor that is next handed to NumPy: the detach is only there to allow it."""
        for _ in range(3):
            readers = self._step.trace.readers_of(index, self._step.flow.sources)
            if any(
                self._step.trace.records[reader].info.name in ("Tensor.numpy", "Tensor.__array__")
                for reader in readers
            ):
                return True
            if len(readers) != 1:
                return False
            index = readers[0]
        return False

    def inference(self) -> list[CutFacts]:
        """A failing call that was given a tensor made under inference_mode: the region is the
        cut."""
        failing = self._step.functions.failing
        if self._step.error is None or failing is None:
            return []
        for tensor in failing[1]:
            made = self._step.flow.producer(tensor)
            if (
                not tensor.is_inference()
                or made is None
                or made < 0
                or self._step.flow.grad_off[made] <= 0
            ):
                continue
            region = self._step.flow.regions[self._step.flow.grad_off[made]]
            orphans = self.names(self._gradient.masks[0][made])
            facts = self._step.trace.facts(made)
            return [
                CutFacts(
                    op=facts,
                    kind="region",
                    region_kind=region.kind,
                    region=span_of(region.place),
                    orphans=orphans,
                )
            ]
        return []

    def frozen_midway(self) -> list[CutFacts]:
        """Parameters that were trainable when the step began and were frozen by a call inside
        it."""
        by_place: dict[Any, list[str]] = {}
        for bit, place in self._step.flow.frozen_at.items():
            name = self._step.flow.names[bit]
            if (
                place is not None
                and name
                and self._step.trainable.get(name)
                and name not in self._step.with_gradient
            ):
                by = self._step.flow.frozen_by.get(bit, place)
                by_place.setdefault(by, []).append(name)
        found = []
        for place, names in by_place.items():
            facts = OpFacts(
                index=0,
                op="Tensor.requires_grad_",
                phase="forward",
                module=None,
                module_type=None,
                location=resolve(*place),
            )
            found.append(CutFacts(op=facts, kind="frozen-midway", orphans=tuple(names)))
        return found

    def flat(self, zero: int) -> list[CutFacts]:
        """The ops whose derivative is zero everywhere, on the only way to parameters with an
        exactly zero gradient."""
        if not zero:
            return []
        flow = GradFlow(self._step.trace, self._step.flow, self._step.losses, flat=True)
        return [
            CutFacts(
                op=self._step.trace.facts(cut.index), kind="flat", orphans=self.names(cut.orphans)
            )
            for cut in flow.cuts(zero & ~flow.loss_gradients)
            if flow.ends(cut.index)
        ]


def span_of(place: Place | SourceSpan | None) -> SourceSpan | None:
    """The span of a place; of a `with` statement only its head."""
    if place is None or isinstance(place, SourceSpan):
        return place
    span = resolve(*place)
    if span is not None and span.code.startswith("with ") and span.end_line > span.line:
        head = span.code.split("\n")[0]
        span = replace(span, end_line=span.line, end_column=span.indent + len(head) + 1, code=head)
    return span
