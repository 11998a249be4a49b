"""What the networks of a script are given while they are trained, and what while they are only
asked (a validation, an agent that acts). Are they the same way round?

Of each position of a sample the mean and the deviation over many samples are kept, for both. Where
those of the one are unlike those of the other, and alike once an axis is turned, one of the two is
turned. Calls are listened to in a few iterations, and for a while when the loop has been left.

Frames of this file are looked through when a user's line is sought (see `trace.spans`).
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nanodoc.facts.asides import TurnedFacts
from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import ours
from nanodoc.instrument.torch_private import DisableTorchFunction, current_autograd_node
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.spans import Place, calling_places, resolved

look_through(__file__)

_MOST_NETWORKS = 64
_MOST_POSITIONS = 1 << 18  # of a sample
_MOST_VALUES = 1 << 20  # of a call
_FEWEST_POSITIONS = 3
_MOST_SHAPES = 8
_MOST_CALLS = 24  # in one stretch behind the loop
_MOST_WINDOWS = 64  # of each kind
_MOST_WAITING = 32  # calls of an agent in one iteration
_MOST_TRAINED = 256  # calls in all
_APART = 1.1  # times the iterations before, those before the next one that is listened to
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


@dataclass(slots=True)
class _Sums:
    """Over samples of one shape."""

    count: int
    sums: torch.Tensor
    squares: torch.Tensor


@dataclass(slots=True)
class _Profile:
    """Of what one network was given at one place, in one of the two ways."""

    halves: tuple[dict[_Shape, _Sums], dict[_Shape, _Sums]] = field(
        default_factory=lambda: ({}, {})
    )
    """Every other call is in the second one."""
    calls: int = 0
    place: Place | None = None

    def add(self, rows: torch.Tensor, place: Place | None) -> None:
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
        self.place = self.place or place

    @property
    def samples(self) -> int:
        return sum(sums.count for half in self.halves for sums in half.values())

    def moments(self, axes: Sequence[int]) -> tuple[_Moments, _Moments]:
        """Of both halves: mean and second moment along these axes, over all others."""
        first, second = (_along(half.values(), axes) for half in self.halves)
        return first, second


@dataclass(slots=True)
class _Asked:
    """A call with gradients off inside an iteration, whose kind the iteration's other calls say."""

    key: tuple[str, int]
    size: int
    rows: torch.Tensor
    place: Place | None


class GivenInputs:
    """Told of iterations by `Outside`, and of the model by the session. `quiet`: a step is run
    again."""

    def __init__(self, quiet: Callable[[], bool]) -> None:
        self._quiet = quiet
        self._names: dict[int, tuple[str, weakref.ref[torch.nn.Module]]] = {}
        self._may_hook: Callable[[], bool] = lambda: False
        self._hook: Any = None
        self._inside = False
        self._iterations = self._next = self._windows = self._behind = self._calls = 0
        self._trained: dict[tuple[str, int], _Profile] = {}
        self._aside: dict[tuple[str, int], _Profile] = {}
        self._dims: dict[tuple[str, int], int] = {}
        self._waiting: list[_Asked] = []
        self._sizes: set[tuple[tuple[str, int], int]] = set()

    def of_model(self, model: torch.nn.Module, may_hook: Callable[[], bool]) -> None:
        """This is what is trained; `may_hook` says whether modules may have hooks now."""
        self.close()
        modules = [(name, module) for name, module in model.named_modules()][: 4 * _MOST_NETWORKS]
        outer = [(name, module) for name, module in modules if name.count(".") < 2]
        self._names = {id(m): (name, weakref.ref(m)) for name, m in outer[:_MOST_NETWORKS]}
        self._may_hook = may_hook
        self._iterations = self._next = self._windows = self._behind = 0
        self._dims = {}

    def begins(self) -> None:
        """An iteration of the training begins."""
        if self._hook is not None:
            self._end()
        self._iterations += 1
        if self._iterations < self._next or self._windows >= _MOST_WINDOWS:
            return
        self._next = int(_APART * self._iterations) + 1
        self._windows += 1
        self._open(inside=True)

    def left(self) -> None:
        """The loop of the training has been left, for now."""
        if self._hook is not None:
            self._end()
        if self._behind < _MOST_WINDOWS and self._trained:
            self._behind += 1
            self._open(inside=False)

    def close(self) -> None:
        """Takes the hook away."""
        if self._hook is not None:
            self._end()
        self._names, self._trained, self._aside = {}, {}, {}

    def _open(self, *, inside: bool) -> None:
        if not self._names or self._quiet() or not self._may_hook():
            return
        self._inside, self._calls, self._sizes = inside, 0, set()
        # one hook for all modules, in none of them: the script may copy or pickle its model
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._called)

    def _end(self) -> None:
        self._hook.remove()
        self._hook = None
        for asked in self._waiting:
            # an agent acts on other numbers of samples than it is trained on; a target for the same
            # samples belongs to the training
            if (asked.key, asked.size) not in self._sizes:
                self._aside.setdefault(asked.key, _Profile()).add(asked.rows, asked.place)
        self._waiting = []

    @ours
    def _called(self, module: torch.nn.Module, args: Any) -> None:
        known = self._names.get(id(module))
        if known is None or known[1]() is not module or current_autograd_node() is not None:
            return
        if self._quiet():
            return
        self._calls += 1
        if self._calls > _MOST_CALLS and not self._inside:
            self._end()
            return
        learns = torch.is_grad_enabled()
        asks = not learns or not (self._inside or module.training)
        with contextlib.suppress(Exception), torch.no_grad(), DisableTorchFunction():
            for position, given in enumerate(args):
                if isinstance(given, torch.Tensor) and is_plain(given) and given.numel():
                    trained = self._inside and learns and module.training
                    self._note((known[0], position), given.detach(), trained=trained, asks=asks)

    def _note(
        self, key: tuple[str, int], given: torch.Tensor, *, trained: bool, asks: bool
    ) -> None:
        # where padding stands says nothing of ids
        if not given.is_floating_point() or given.itemsize == 1:
            return
        if trained and given.dim() > 1:
            self._dims.setdefault(key, given.dim())
        dims = self._dims.get(key)
        if dims is None or given.dim() not in (dims, dims - 1):
            return
        rows = given if given.dim() == dims else given[None]
        positions = rows[0].numel()
        if not len(rows) or not _FEWEST_POSITIONS <= positions <= _MOST_POSITIONS:
            return
        known = self._trained.get(key)
        if trained and known is not None and known.calls >= _MOST_TRAINED:
            return
        if self._inside and not trained and len(self._waiting) >= _MOST_WAITING:
            return
        size, rows = len(rows), rows[: max(1, _MOST_VALUES // positions)].float()
        own, caller = calling_places(3)
        place = caller or own
        if trained:
            self._sizes.add((key, size))
            self._trained.setdefault(key, _Profile()).add(rows, place)
            self._only(key[0])
        elif asks and self._inside:
            self._waiting.append(_Asked(key, size, rows.clone(), place))
        elif asks:
            self._aside.setdefault(key, _Profile()).add(rows, place)

    def _only(self, path: str) -> None:
        """What is inside of a network that is called is not looked at."""
        inside = f"{path}." if path else ""
        for identity, (name, _) in list(self._names.items()):
            if name != path and name.startswith(inside):
                del self._names[identity]

    @ours
    def facts(self) -> TurnedFacts | None:
        """The first network that was given its samples the other way round."""
        with contextlib.suppress(Exception), torch.no_grad(), DisableTorchFunction():
            for key, trained in self._trained.items():
                aside = self._aside.get(key)
                if aside is not None and (found := _compared(key, trained, aside)) is not None:
                    return found
        return None


def _compared(key: tuple[str, int], trained: _Profile, aside: _Profile) -> TurnedFacts | None:
    if trained.samples < _ENOUGH[0] or aside.samples < _ENOUGH[1]:
        return None
    shapes = {shape for one in (trained, aside) for half in one.halves for shape in half}
    dims = {len(shape) for shape in shapes}
    if len(dims) != 1:
        return None
    axes = [axis for axis in range(dims.pop()) if len({shape[axis] for shape in shapes}) == 1]
    shape = tuple(next(iter(shapes))[axis] for axis in axes)
    if math.prod(shape) < _FEWEST_POSITIONS:
        return None
    own, other = _Compared(*trained.moments(axes)), _Compared(*aside.moments(axes))
    chance = own.apart_by_chance(other)
    as_given = own.apart(other)
    if not as_given > max(_UNLIKE, _TIMES_CHANCE * chance):
        return None
    turned = [(own.apart(other.turned(turn)), how) for how, turn in _turns(shape, axes)]
    least, how = min(turned, default=(as_given, ""))
    alike = _ALIKE if math.prod(shape) >= _MANY else _ALIKE_OF_FEW
    if own.apart(other.negated()) < _DRIFTED * as_given:
        return None  # what has drifted from one side of zero to the other looks turned, too
    if not least < max(alike * as_given, chance):
        return None
    return TurnedFacts(
        network=key[0],
        shape=shape,
        how=how,
        apart=as_given,
        turned_apart=least,
        chance=chance,
        samples=(trained.samples, aside.samples),
        trained_at=resolved(trained.place),
        asked_at=resolved(aside.place),
    )


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
