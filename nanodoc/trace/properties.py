"""Properties of tensors, as a walk to their births asks for them (`nanodoc.trace.birth`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

import torch

from nanodoc.instrument.torch_private import DisableTorchFunction
from nanodoc.tensors.plain import is_plain
from nanodoc.tensors.slices import equal_along, slack

_MOST_VALUES = 4096
_CLEARLY = 1e-3
"""Slices that differ by so much of the largest value differ by more than rounding."""
_JUMP = 1e4
"""An op that makes a value so many times as large has made its size."""


class Property(Protocol):
    """Something that a tensor has or has not."""

    def of(self, tensor: torch.Tensor) -> Any:
        """What is known of it in a tensor; None where it can't be asked."""
        ...

    def held(self, known: Any) -> bool:
        """Whether a tensor of which this is known has it."""
        ...

    def passes(self, before: Any, after: Any) -> bool:
        """Whether an op's result has it because an input had it, as far as the two tell."""
        ...

    def born(self, before: Sequence[Any], after: Any) -> bool:
        """Whether an op whose inputs are so can have made it. None of them passes it on."""
        ...


@dataclass(frozen=True, slots=True)
class Outside:
    """How a tensor is out of a range."""

    share: float
    """Of its elements."""
    values: frozenset[float] | None
    """Those out of range; None where there are too many."""
    integral: bool

    def holds(self, *values: float) -> bool:
        """All of these are among the values."""
        return self.values is not None and self.values.issuperset(values)


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """Property: some elements are less than `low` or more than `high`. With `whole`, the range is
    one of integers, and a floating value counts as what a cast makes of it."""

    low: float
    high: float
    whole: bool

    def of(self, tensor: torch.Tensor) -> Outside | None:
        if not tensor.numel() or not is_plain(tensor):
            return None
        if tensor.dtype == torch.bool or tensor.is_complex():
            return None
        with torch.no_grad(), DisableTorchFunction():
            values = tensor.detach()
            if values.is_floating_point():
                values = values.double().trunc() if self.whole else values.double()
            bad = values[(values < self.low) | (values > self.high)]
            if not bad.numel():
                return None
            kinds = bad.unique()
        few = kinds.numel() <= _MOST_VALUES
        return Outside(
            share=bad.numel() / tensor.numel(),
            values=frozenset(map(float, kinds.tolist())) if few else None,
            integral=not tensor.is_floating_point(),
        )

    def held(self, known: Outside | None) -> bool:
        return known is not None

    def born(self, before: Sequence[Any], after: Any) -> bool:
        return True

    def passes(self, before: Outside, after: Outside) -> bool:
        """The same values are out of range; or the op computed with values of which no smaller
        share was. One that brings others into the range is the one that should bring all, such as
        a quantisation."""
        handed_on = False
        if before.values is not None and after.values is not None:
            handed_on = after.values <= before.values
        if after.integral and not before.integral:  # a cast; numbers of bins are no values of it
            return handed_on and before.share == after.share
        return handed_on or before.share <= after.share


class Slices(Enum):
    """What is known of a tensor."""

    ZERO = auto()
    """All its elements are 0: whatever is multiplied with it is, too, along any axis."""
    EQUAL = auto()
    VARY = auto()
    OTHER = auto()
    """It has no such axis, or its slices differ by little: from layer to layer less is left."""


@dataclass(frozen=True, slots=True)
class EqualSlices:
    """Property: the slices along an axis of `size` are equal.

    The axis is followed by its size, through views as well: merged with another one, it is the
    leading part or the last part of a longer first axis.
    """

    size: int

    def of(self, tensor: torch.Tensor) -> Slices | None:
        if not tensor.numel() or not tensor.is_floating_point() or not is_plain(tensor):
            return None
        with torch.no_grad(), DisableTorchFunction():
            if not bool(tensor.detach().any()):
                return Slices.ZERO
            if tensor.numel() == 1:
                return None
            allowed = slack(tensor)
            axes = [axis for axis, size in enumerate(tensor.shape) if size == self.size]
            if any(equal_along(tensor, axis, allowed) for axis in axes):
                return Slices.EQUAL
            if self._merged(tensor, allowed):
                return Slices.EQUAL
            clearly = _CLEARLY * float(tensor.detach().abs().max())
            varies = any(not equal_along(tensor, axis, clearly) for axis in axes)
            return Slices.VARY if varies else Slices.OTHER

    def _merged(self, tensor: torch.Tensor, allowed: float) -> bool:
        """Of a tensor whose first axis is this one and another, merged."""
        first, rest = tensor.shape[0], tensor.shape[1:]
        if not rest or first % self.size:
            return False
        shapes = ((self.size, -1, *rest), (-1, self.size, *rest))
        return any(
            equal_along(tensor.reshape(shape), axis, allowed) for axis, shape in enumerate(shapes)
        )

    def held(self, known: Slices | None) -> bool:
        return known in (Slices.ZERO, Slices.EQUAL)

    def passes(self, before: Slices, after: Slices) -> bool:
        return before is Slices.ZERO or after is Slices.EQUAL

    def born(self, before: Sequence[Slices | None], after: Slices) -> bool:
        """Some input varied along the axis, or the op made nothing but zeros of what it was given.
        What is spread by broadcasting did not vary."""
        return Slices.VARY in before or (after is Slices.ZERO and bool(before))


@dataclass(frozen=True, slots=True)
class Size:
    """How large a floating tensor is."""

    largest: float
    """|value|, of those that are finite."""
    elements: int


@dataclass(frozen=True, slots=True)
class Large:
    """Property: some |value| is `least` or more."""

    least: float

    def of(self, tensor: torch.Tensor) -> Size | None:
        if not tensor.numel() or not tensor.is_floating_point() or not is_plain(tensor):
            return None
        with torch.no_grad(), DisableTorchFunction():
            largest = float(tensor.detach().nan_to_num(0.0, 0.0, 0.0).abs().max())
        return Size(largest, tensor.numel())

    def held(self, known: Size | None) -> bool:
        return known is not None and known.largest >= self.least

    def passes(self, before: Size, after: Size) -> bool:
        return after.largest <= max(_JUMP, 10 * before.largest) * before.largest

    def born(self, before: Sequence[Size | None], after: Size) -> bool:
        """The result is far larger than the inputs, their squares and their sums."""
        known = [size for size in before if size is not None]
        if not known:
            return False
        largest = max(size.largest for size in known)
        elements = max(size.elements for size in known)
        return after.largest > max(_JUMP, 10 * largest, elements * max(largest, 1.0)) * largest
