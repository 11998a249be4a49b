"""A curve as a drawing: where its lines, ticks and marks lie, for the template to write as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 72, 388, 20, 186  # the frame, in the drawing's own units
_MOST_TICKS = 6
_STRIPS = 160  # places that say their values when the pointer is on them
_FEW, _WIDE_GAP = 40, 3  # points of a short curve; times the usual gap between two
_NARROWEST = 0.02  # of a value, above and below it
_LOG_FROM = 100.0  # the largest value over the smallest
_LARGEST, _TINY = 1.7e308, 1e-300
_PLAIN = (1e-3, 1e6)  # tick values that are written without an exponent


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """The drawing. Places are in units of `WIDTH` × `HEIGHT`."""

    log: bool
    line: str
    """The path of the values, with gaps where they are not finite."""
    mean: str
    """The path of the running mean; empty for few values."""
    dots: list[tuple[float, float]]
    """The values of short curves, and those with a wide gap before or after them."""
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    failing: list[tuple[float, int]]
    """(place, step) of the steps of findings."""
    bad: list[tuple[float, int]]
    """(place, step) of the values that are not finite."""
    strips: list[tuple[float, float, str]]
    """(left, width, text) of the places that say their values."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From a value to its place. A logarithmic one holds the powers of ten it goes from and to."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        return self._place(math.log10(value) if self.log else value)

    def ticks(self) -> list[tuple[float, str]]:
        """(place, text), at least two: whole powers of ten, or multiples of 1, 2 or 5 times one."""
        if self.log:
            every = math.ceil((self.high - self.low) / (_MOST_TICKS - 1))
            powers = range(round(self.low), round(self.high) + 1, every)
            return [(self._place(power), _power_text(power)) for power in powers]
        rough = (self.high / 2 - self.low / 2) / (_MOST_TICKS - 1) * 2
        step = _nice(rough) if rough > _TINY else 0.0
        if not 0 < step < math.inf:
            return [(self._place(end), f"{end:.1e}") for end in (self.low, self.high)]
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        most = max(abs(first * step), abs(last * step))
        return [
            (self._place(n * step), _text(n * step, step, most)) for n in range(first, last + 1)
        ]

    def _place(self, value: float) -> float:
        # halves, since the difference of two floats may be no float
        span = self.high / 2 - self.low / 2
        share = (value / 2 - self.low / 2) / span if span else 0.0
        return round(self.begin + share * (self.end - self.begin), 3)


def axis_of(values: Sequence[float], begin: float, end: float, *, from_zero: bool = False) -> Axis:
    """The axis for `values`: logarithmic where all are above zero and the largest is many times the
    smallest. `from_zero`: a linear one begins at zero, and ends at the largest."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low > 0 and high / low > _LOG_FROM:
        powers = (math.floor(math.log10(low)), math.ceil(math.log10(high)))
        return Axis(*powers, begin, end, log=True)
    if from_zero:
        return Axis(0.0, high if high > 0 else 1.0, begin, end)
    # values that are nearly the same look so, and have short ticks
    room = max((high / 2 - low / 2) / 10, max(abs(low), abs(high)) * _NARROWEST) or 1.0
    return Axis(max(low - room, -_LARGEST), min(high + room, _LARGEST), begin, end)


def plotted(
    steps: Sequence[int],
    values: Sequence[float | None],
    *,
    means: Sequence[tuple[float, float]] = (),
    failing: Iterable[int] = (),
    bad: Sequence[int] = (),
) -> Plot:
    """The drawing of a curve; `means` are the (step, value) of its running mean."""
    failing = list(failing)
    finite = [value for value in values if value is not None]
    x = _x_axis([*steps, *failing, *bad])
    y = axis_of(finite, BOTTOM, TOP)
    points = [
        None if value is None else (x.at(step), y.at(value))
        for step, value in zip(steps, values, strict=True)
    ]
    return Plot(
        log=y.log,
        line=_path(points),
        mean=_path([(x.at(step), y.at(value)) for step, value in means]),
        dots=_dots(steps, points),
        x_ticks=[(x.at(tick), str(tick)) for tick in _whole(x)],
        y_ticks=y.ticks(),
        failing=[(x.at(step), step) for step in failing],
        bad=[(x.at(step), step) for step in bad],
        strips=_strips(x, steps, values, set(bad)),
    )


def _x_axis(steps: Sequence[int]) -> Axis:
    low, high = min(steps), max(steps)
    return Axis(low, max(high, low + 1), LEFT, RIGHT)


def _nice(step: float) -> float:
    """The next larger of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next((power * times for times in (1, 2, 5, 10) if power * times >= step * 0.999), step)


def _text(value: float, step: float, most: float) -> str:
    """With as many digits as tell neighbours apart, and none more."""
    if value == 0 or _PLAIN[0] <= most < _PLAIN[1]:
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return f"{value:.{decimals}f}" if value else "0"
    digits = max(0, math.floor(math.log10(abs(value))) - math.floor(math.log10(step) + 1e-9))
    mantissa, _, power = f"{value:.{digits}e}".partition("e")
    return f"{mantissa}e{int(power)}"


def _power_text(power: int) -> str:
    """`0.01`, `1000`, `1e6`."""
    return f"{10.0**power:.{max(0, -power)}f}" if -4 < power < 5 else f"1e{power}"


def _whole(x: Axis) -> list[int]:
    """The ticks below the curve: whole steps."""
    step = max(1, round(_nice((x.high - x.low) / (_MOST_TICKS - 1))))
    return [n * step for n in range(math.ceil(x.low / step), math.floor(x.high / step) + 1)]


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    out, pen = [], False
    for point in points:
        if point is not None:
            out.append(f"{'L' if pen else 'M'}{point[0]:g} {point[1]:g}")
        pen = point is not None
    return "".join(out)


def _dots(
    steps: Sequence[int], points: Sequence[tuple[float, float] | None]
) -> list[tuple[float, float]]:
    shown = [(step, point) for step, point in zip(steps, points, strict=True) if point is not None]
    gaps = [after - before for (before, _), (after, _) in pairwise(shown)]
    wide = _WIDE_GAP * sorted(gaps)[len(gaps) // 2] if gaps else 0
    few = len(points) <= _FEW
    return [
        point
        for (_, point), before, after in zip(shown, [0, *gaps], [*gaps, 0], strict=False)
        if few or before > wide or after > wide
    ]


def _strips(
    x: Axis, steps: Sequence[int], values: Sequence[float | None], bad: set[int]
) -> list[tuple[float, float, str]]:
    """Strips side by side, each with the value in its middle; a value that is not finite comes
    before others."""
    rows: dict[int, tuple[int, float | None]] = {}
    for step, value in zip(steps, values, strict=True):
        number = int((x.at(step) - LEFT) / (RIGHT - LEFT) * _STRIPS)
        if number not in rows or step in bad:
            rows[number] = (step, value)
    shown = sorted(rows.values(), key=lambda row: row[0])
    places = [x.at(step) for step, _ in shown]
    edges = [
        float(LEFT), *(round((a + b) / 2, 1) for a, b in pairwise(places)), float(RIGHT)
    ]  # fmt: skip
    return [
        (left, round(right - left, 1), f"step {step}: {'not finite' if v is None else f'{v:.4g}'}")
        for (step, v), (left, right) in zip(shown, pairwise(edges), strict=True)
    ]
