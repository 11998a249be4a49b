"""What is measured of the values that one public function call takes and makes: targets, ids,
activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from nanodoc.accelerator import in_widest
from nanodoc.facts.calls import ArgumentFacts
from nanodoc.facts.notes import (
    NOTHING,
    AdmittedNotes,
    CallNotes,
    Draft,
    LookupNotes,
    ProductNotes,
    Range,
    ReadNotes,
)
from nanodoc.measure.edges import is_misread
from nanodoc.measure.losses import LossValues, classes_along, number_of, range_of
from nanodoc.measure.masks import Admitted, of_given_mask, of_masked_scores
from nanodoc.measure.pairs import Pairings
from nanodoc.measure.slopes import Slopes
from nanodoc.vocabulary.calls import (
    ADDITIONS,
    ATTENTION,
    FACTORS,
    POSITION_NORMALISATIONS,
    READERS,
    RECTIFIERS,
    SOFTMAXES,
    SQUASHERS,
)

_LOOKUP = "embedding"
_OF_EDGES = ("getitem", "unbind", "select")
_FEWEST_FLAGS, _MOST_FLAGS = 8, 1 << 16
_LAST_DIMENSION = (*POSITION_NORMALISATIONS, "linear", "matmul")
_MOST_READ = 1 << 20  # values
_FLAT = 0.01
"""A derivative below this is flat: sigmoid beyond 0.01 … 0.99, tanh beyond ±0.995."""
_MOST = 20_000_000
"""Elements; a larger tensor is not looked at."""

Maker = Callable[[ArgumentFacts], "tuple[str, ArgumentFacts | None] | None"]


class Units:
    """One activation's units over several batches."""

    def __init__(self) -> None:
        self.alive: torch.Tensor | None = None
        self.flat = 0
        self.values = 0

    def add(self, out: torch.Tensor, dimension: int, kind: str) -> None:
        values = out.detach()
        if kind in SQUASHERS:
            away = values.float().abs() if kind == "tanh" else values.float()
            slope = (1 - away * away) if kind == "tanh" else away * (1 - away)
            self.flat += int((slope < _FLAT).sum())
        alive = (values != 0).movedim(dimension, 0).flatten(1).any(1)
        self.alive = (
            alive if self.alive is None or self.alive.shape != alive.shape else self.alive | alive
        )
        self.values += values.numel()


class ValueProbe:
    """Asked about every call of a step; keeps the units of activations by (module, place in the
    step)."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, int], Units] = {}
        self.slopes = Slopes()
        self._pairings = Pairings()
        self.made_by: Maker = lambda argument: None
        self._losses = LossValues()
        self._count = self._softmaxes = self._lookups = self._products = 0
        self._admitted: dict[int, Admitted] = {}
        self._ids: dict[int, Range] = {}
        self._largest: dict[int, int] = {}

    def begin(self, made_by: Maker) -> None:
        """Another batch is about to be looked at."""
        self.made_by = made_by
        self.slopes.begin()
        self._pairings = Pairings()
        self._losses.begin()
        self._count = self._softmaxes = self._lookups = self._products = 0

    def measure(
        self,
        name: str,
        tensors: list[torch.Tensor],
        options: dict[str, Any],
        out: Any,
        arguments: list[ArgumentFacts],
    ) -> Draft:
        """What was measured of a call. `slopes` adds to it when the step is differentiated."""
        draft = Draft(self._measured(name, tensors, options, out, arguments))
        self.slopes.note(name, out, draft)
        return draft

    def _measured(
        self,
        name: str,
        tensors: list[torch.Tensor],
        options: dict[str, Any],
        out: Any,
        arguments: list[ArgumentFacts],
    ) -> CallNotes:
        if not tensors or any(
            t.is_nested or t.numel() > _MOST or t.layout is not torch.strided for t in tensors[:2]
        ):
            return NOTHING
        with torch.no_grad(), torch.autocast(tensors[0].device.type, enabled=False):
            loss = self._losses.measure(name, tensors, options, out)
            if loss is not None:
                return loss
            if name in SOFTMAXES:
                return self._softmax(tensors[0], options)
            if name in ATTENTION:
                return CallNotes(mask=of_given_mask(name, tensors))
            ids = self._of_ids(name, tensors)
            if ids is not None:
                return ids
            if (
                (name in RECTIFIERS or name in SQUASHERS)
                and isinstance(out, torch.Tensor)
                and out.dim() > 1
                and out.requires_grad
            ):
                return self._activation(name, out, arguments)
            if name == "sub" and _are_the_same(tensors):
                return CallNotes(same=True)
            if not isinstance(out, torch.Tensor):
                return NOTHING
            told = self._pairings.note(name, out)
            told = told if told is not NOTHING else _of_others(name, tensors, out)
            if name == "mul" and len(tensors) == 2 and (admitted := self._lets_through(tensors)):
                told = replace(told, product=replace(told.product, admitted=admitted))
            read = _read(name, tensors[0])
            return replace(told, read=read) if read is not None else told

    def _of_ids(self, name: str, tensors: list[torch.Tensor]) -> CallNotes | None:
        """What is looked up in a table, and the rows of edges."""
        if name == _LOOKUP and len(tensors) > 1:
            rows = tensors[1].shape[0]
            return CallNotes(lookup=LookupNotes(rows=rows, ids=self._all_ids(tensors[0])))
        if name in _OF_EDGES and is_misread(tensors[0]):
            return CallNotes(misread_edges=tensors[0].shape[1])
        return None

    def _all_ids(self, ids: torch.Tensor) -> Range | None:
        """The smallest and the largest of a lookup's ids; where they are one, in all batches so
        far."""
        self._lookups += 1
        found = range_of(ids)
        if found is None:
            return None
        known = self._ids.get(self._lookups, found)
        both = Range(min(known.low, found.low), max(known.high, found.high))
        self._ids[self._lookups] = both
        return both if found.low == found.high else found

    def _lets_through(self, tensors: list[torch.Tensor]) -> AdmittedNotes | None:
        """Of a product with a mask of rows."""
        self._products += 1
        given, mask = sorted(tensors, key=lambda tensor: tensor.numel(), reverse=True)
        if not given.is_floating_point() or given.numel() == mask.numel():
            return None
        return self._admitted.setdefault(self._products, Admitted()).add(given, mask)

    def _softmax(self, given: torch.Tensor, options: dict[str, Any]) -> CallNotes:
        """The largest size of its dimension in all batches so far: lengths differ from batch to
        batch."""
        dim = options.get("dim")
        if not isinstance(dim, int) or not -given.dim() <= dim < given.dim():
            return NOTHING
        self._softmaxes += 1
        largest = self._largest[self._softmaxes] = max(
            self._largest.get(self._softmaxes, 0), int(given.shape[dim])
        )
        mask = of_masked_scores(given) if dim in (-1, given.dim() - 1) else None
        return CallNotes(largest_dimension=largest, mask=mask)

    def _activation(
        self, name: str, out: torch.Tensor, arguments: list[ArgumentFacts]
    ) -> CallNotes:
        self._count += 1
        units = self.units.setdefault((name, self._count), Units())
        units.add(out, self._unit_dimension(out, arguments[0] if arguments else None), name)
        return CallNotes(activation=self._count)

    def _unit_dimension(self, out: torch.Tensor, argument: ArgumentFacts | None) -> int:
        """Channels come second in images, last in sequences."""
        if out.dim() != 3:
            return 1
        for _ in range(8):
            made = self.made_by(argument) if argument is not None else None
            if made is None:
                break
            if made[0].startswith("conv") or made[0] == "batch_norm":
                return 1
            if made[0] in _LAST_DIMENSION:
                return 2
            argument = made[1]
        return 2


def _flags(tensors: list[torch.Tensor]) -> float | None:
    """The share of ones of a factor that is 0 or 1 everywhere, or 0 and one other number, with one
    value for each row; None where there is no such factor."""
    nothing: float | None = None
    for flags in tensors:
        if not _FEWEST_FLAGS <= flags.numel() <= _MOST_FLAGS or flags.requires_grad:
            continue
        one = flags.max()
        ones = flags == one
        column = sum(size > 1 for size in flags.shape) == 1
        if column and not bool(one) and bool(ones.all()):
            nothing = 0.0
        elif column and bool(one) and bool((ones | (flags == 0)).all()):
            return float(ones.float().mean())
    return nothing


def _masked(tensors: list[torch.Tensor]) -> Range | None:
    """The range of what is multiplied with a mask of zeros and ones of its shape."""
    if len(tensors) != 2 or tensors[0].shape != tensors[1].shape:
        return None
    mask, scores = sorted(tensors, key=lambda tensor: tensor.requires_grad)
    if mask.requires_grad or mask.numel() < _FEWEST_FLAGS:
        return None
    ones = mask == 1
    flags = bool((ones | (mask == 0)).all() and ones.any() and not ones.all())
    return range_of(scores) if flags else None


def _are_the_same(tensors: list[torch.Tensor]) -> bool:
    """Two of several values each, of which one learns; equal, and not all of them 0."""
    if len(tensors) != 2 or tensors[0].requires_grad == tensors[1].requires_grad:
        return False
    one, other = tensors
    if one.shape != other.shape or one.numel() < 2 or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) and bool(one.any())


def _read(name: str, given: torch.Tensor) -> ReadNotes | None:
    """What the first layer of a network reads: a number that equal readings share, and where the
    tensor lies."""
    if name not in READERS or given.requires_grad or not given.is_floating_point():
        return None
    if given.dim() < 2 or given.numel() > _MOST_READ or not bool((given != given[:1]).any()):
        return None
    values = in_widest(given.detach()).flatten()
    places = torch.arange(1, values.numel() + 1, device=values.device, dtype=values.dtype)
    return ReadNotes(mark=float((values * places.sqrt()).sum()), address=given.data_ptr())


def _of_others(name: str, tensors: list[torch.Tensor], out: torch.Tensor) -> CallNotes:
    if out.requires_grad:
        if name == "mul" and out.dim() > 1:
            product = ProductNotes(masked=_masked(tensors))
            return CallNotes(product=product, class_dimension=classes_along(tensors))
        return CallNotes(value=number_of(out)) if out.dim() == 0 else NOTHING
    ones = _flags(tensors) if name == "mul" else None
    if ones is not None:
        return CallNotes(product=ProductNotes(ones=ones))
    scaled = name in (*ADDITIONS, *FACTORS) and len(tensors) == 1
    if scaled and out.dim() > 1 and out.is_floating_point():
        return CallNotes(scaled=range_of(out))
    return NOTHING
