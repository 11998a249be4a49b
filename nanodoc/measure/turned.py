"""Are two sets of samples the same way round?

Of each position of a sample the mean and the variance over many samples are kept, for both sets.
Where those of the one are unlike those of the other, and alike once an axis is turned, one of the
two is turned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

FEWEST_POSITIONS = 3
_MOST_SHAPES = 8
_ENOUGH = (64, 32)  # samples while it is trained, and while it is asked
_FLOOR = 0.05  # of the deviation of all values: smaller ones count as this
_UNLIKE = 0.02
"""Mean over the positions of (difference of the means / deviation)² and (difference of the
variances / variance)²: what must lie between the two, as given."""
_TIMES_CHANCE = 6.0  # what lies between two halves of the samples of one of them
_ALIKE = 0.3  # of the distance as given, where one of them is turned
_DRIFTED = 0.5  # of the distance as given, with the other sign
_MANY = 16  # positions
_ALIKE_OF_FEW = 0.1  # a change of a few features may look like a turn

_Turn = Callable[[torch.Tensor], torch.Tensor]
_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turned:
    """What lies between two sets of samples."""

    shape: _Shape
    """Of a sample, along the axes that all of them share."""
    how: str
    """What makes the two alike."""
    apart: float
    turned_apart: float
    chance: float


@dataclass(slots=True)
class _Sums:
    """Over samples of one shape."""

    count: int
    sums: torch.Tensor
    squares: torch.Tensor


@dataclass(slots=True)
class Profile:
    """The sums over one set of samples."""

    halves: tuple[dict[_Shape, _Sums], dict[_Shape, _Sums]] = field(
        default_factory=lambda: ({}, {})
    )
    """Every other call is in the second one."""
    calls: int = 0

    def add(self, rows: torch.Tensor) -> None:
        """The samples of one call."""
        half = self.halves[self.calls % 2]
        shape = tuple(rows.shape[1:])
        known = half.get(shape)
        if known is None and len(half) >= _MOST_SHAPES:
            return
        count, sums, squares = len(rows), rows.sum(0), rows.square().sum(0)
        if known is not None:
            count, sums, squares = (
                count + known.count,
                sums + known.sums,
                squares + known.squares,
            )
        half[shape] = _Sums(count, sums, squares)
        self.calls += 1

    @property
    def samples(self) -> int:
        """How many there are."""
        return sum(sums.count for half in self.halves for sums in half.values())

    def moments(self, axes: Sequence[int]) -> tuple[_Moments, _Moments]:
        """Of both halves: mean and second moment along these axes, over all others."""
        first, second = (_along(half.values(), axes) for half in self.halves)
        return first, second


def turned(trained: Profile, aside: Profile) -> Turned | None:
    """None where the two sets are alike, unlike in another way, or too small."""
    if trained.samples < _ENOUGH[0] or aside.samples < _ENOUGH[1]:
        return None
    shapes = {shape for one in (trained, aside) for half in one.halves for shape in half}
    dims = {len(shape) for shape in shapes}
    if len(dims) != 1:
        return None
    axes = [axis for axis in range(dims.pop()) if len({shape[axis] for shape in shapes}) == 1]
    shape = tuple(next(iter(shapes))[axis] for axis in axes)
    if math.prod(shape) < FEWEST_POSITIONS:
        return None
    own, other = _Compared(*trained.moments(axes)), _Compared(*aside.moments(axes))
    chance = own.apart_by_chance(other)
    as_given = own.apart(other)
    if not as_given > max(_UNLIKE, _TIMES_CHANCE * chance):
        return None
    turns = [(own.apart(other.turned(turn)), how) for how, turn in _turns(shape, axes)]
    least, how = min(turns, default=(as_given, ""))
    alike = _ALIKE if math.prod(shape) >= _MANY else _ALIKE_OF_FEW
    if own.apart(other.negated()) < _DRIFTED * as_given:
        return None  # what has drifted from one side of zero to the other looks turned, too
    if not least < max(alike * as_given, chance):
        return None
    return Turned(shape, how, as_given, least, chance)


_Moments = tuple[torch.Tensor, torch.Tensor]
"""Mean and mean of the squares."""


def _along(parts: Iterable[_Sums], axes: Sequence[int]) -> _Moments:
    mean = square = torch.zeros(())
    count = 0
    for part in parts:
        others = [axis for axis in range(part.sums.dim()) if axis not in axes]
        sums, squares = (
            (values.double().cpu().mean(others) if others else values.double().cpu())
            for values in (part.sums, part.squares)
        )
        mean, square, count = mean + sums, square + squares, count + part.count
    return mean / count, square / count


@dataclass(frozen=True, slots=True)
class _Compared:
    """The moments of two halves of the samples, held against those of other samples. The product of
    a difference in one half and the same difference in the other has no part that is chance
    alone."""

    first: _Moments
    second: _Moments

    def turned(self, turn: _Turn) -> _Compared:
        """Of samples that are turned."""
        return _Compared(*((turn(mean), turn(square)) for mean, square in self._halves))

    def negated(self) -> _Compared:
        """Of samples with the other sign."""
        return _Compared(*((-mean, square) for mean, square in self._halves))

    @property
    def _halves(self) -> tuple[_Moments, _Moments]:
        return self.first, self.second

    def apart(self, other: _Compared) -> float:
        """As `_UNLIKE` says."""
        scale = self._scale(other)
        one, two = self._parts(other, scale), other._parts(self, scale)
        products = [(a - b) * (c - d) for (a, c), (b, d) in zip(one, two, strict=True)]
        return float(sum(part.mean() for part in products))

    def apart_by_chance(self, other: _Compared) -> float:
        """What the same comes to for the differences between the halves, which are chance alone."""
        scale = self._scale(other)
        one, two = self._parts(other, scale), other._parts(self, scale)
        products = [(a - c) * (b - d) for (a, c), (b, d) in zip(one, two, strict=True)]
        squares = [
            ((a - c).square() + (b - d).square()) / 4
            for (a, c), (b, d) in zip(one, two, strict=True)
        ]
        size = len(products[0].reshape(-1))
        spread = sum(float(part.mean()) for part in squares) / math.sqrt(size)
        return max(abs(float(sum(part.mean() for part in products))), spread)

    def _scale(self, other: _Compared) -> torch.Tensor:
        """The deviation of each position."""
        halves = (self.first, self.second, other.first, other.second)
        within = torch.stack([_variance(one) for one in halves]).mean(0)
        return within.sqrt() + _FLOOR * self._whole(other)

    def _whole(self, other: _Compared) -> torch.Tensor:
        """The deviation of all values together."""
        halves = (self.first, self.second, other.first, other.second)
        mean = torch.stack([one[0].mean() for one in halves]).mean()
        square = torch.stack([one[1].mean() for one in halves]).mean()
        return (square - mean.square()).clamp(min=1e-24).sqrt()

    def _parts(
        self, other: _Compared, scale: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(of the first half, of the second) of means and of variances, in terms of `scale`."""
        means = self.first[0] / scale, self.second[0] / scale
        spreads = (
            _variance(self.first) / scale.square(),
            _variance(self.second) / scale.square(),
        )
        return [means, spreads]


def _variance(moments: _Moments) -> torch.Tensor:
    mean, square = moments
    return (square - mean.square()).clamp(min=0)


def _turns(shape: _Shape, axes: Sequence[int]) -> Iterator[tuple[str, _Turn]]:
    """(in words, how positions move); `axes` are those of a sample."""
    for at, size in enumerate(shape):
        if size > 1:
            yield f"flipped along axis {axes[at] + 1}", _Flip(at)
        for second in range(at + 1, len(shape)):
            if size == shape[second] > 1:
                words = f"transposed (axes {axes[at] + 1} and {axes[second] + 1} exchanged)"
                yield words, _Exchange(at, second)


@dataclass(frozen=True, slots=True)
class _Flip:
    axis: int

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return values.flip(self.axis)


@dataclass(frozen=True, slots=True)
class _Exchange:
    one: int
    other: int

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        return values.transpose(self.one, self.other)
