"""What the page draws of a run: its course step by step and its layers at the sampled steps, from
history.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from nanodoc.facts.frames import Magnitude
from nanodoc.report.page.plot import Axis, Plot, axis_of, plotted

_LARGEST = 256 * 2**20  # bytes of a history that is read
_LAST_STEP = 2**53
_POINTS = 1000  # of a curve: more than a chart has columns
_MEANS, _FOR_MEANS = 60, 300  # points of the running mean, and values from which there is one
_LAYERS, _STEPS = 60, 40  # rows and columns of the map
_SERIES = (
    ("loss", "loss", "loss"),
    ("gradient norm", "grad_norm", "L2 norm"),
    ("learning rate", "lr", "learning rate"),
    ("loss scale", "scale", "loss scale"),
    ("throughput", "samples_per_second", "samples/s"),
)
"""(title, key in the history, label of the vertical axis)"""


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity by step. `values` are None where they are not finite."""

    title: str
    unit: str
    steps: list[int]
    values: list[float | None]
    bad: list[int]
    """The steps at which it was not finite."""
    means: list[tuple[float, float]] = field(default_factory=list)
    """(step, mean of the values around it) of a curve with many values."""
    plot: Plot | None = None

    @property
    def told(self) -> str:
        """The curve in words, for those who cannot see it."""
        unit = f" ({self.unit})" if self.title == "throughput" else ""
        return f"{self.title}{unit}: {self.summary}"

    @property
    def summary(self) -> str:
        """Its first, last and largest value."""
        finite = [value for value in self.values if value is not None]
        if not finite:
            return "no finite value"
        text = f"{finite[0]:.4g} to {finite[-1]:.4g}, at most {max(finite):.4g}"
        return text + (f", not finite at step {self.bad[0]}" if self.bad else "")


@dataclass(frozen=True, slots=True)
class Map:
    """A heat map: rows of layers or groups, columns of steps; a cell is (share of the colour's
    range, text), or None."""

    title: str
    steps: list[int]
    low: str
    high: str
    log: bool
    rows: list[tuple[str, list[tuple[float, str] | None]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each layer. `rows` are (layer, type, share of the longest bar, text, whether
    something is not finite)."""

    rows: list[tuple[str, str, float, str, bool]]
    ticks: list[tuple[float, str]]
    """(share of the longest bar, text)"""
    log: bool


def history_of(path: Path | None) -> list[Mapping[str, Any]]:
    """The steps of a history; empty where there is none that can be read."""
    try:
        if path is None or not path.is_file() or path.stat().st_size > _LARGEST:
            return []
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    steps: list[Mapping[str, Any]] = []
    for line in lines:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, dict) and _is_step(values.get("step")):
            steps.append(values)
    return steps


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LAST_STEP


def curves(history: Sequence[Mapping[str, Any]], failing: Sequence[int] = ()) -> list[Curve]:
    """The curves that say something: those that are there, and the loss. `failing` are the steps of
    findings."""
    found = []
    for title, key, unit in _SERIES:
        pairs = [(line["step"], line[key]) for line in history if line.get(key) is not None]
        steps = [step for step, _ in pairs]
        values = [_number(value) for _, value in pairs]
        bad = [step for step, value in zip(steps, values, strict=True) if value is None]
        constant = len(set(values)) < 2
        if len(steps) > 2 and not (constant and key in ("lr", "scale")):
            curve = Curve(title, unit, *_thinned(steps, values), bad[:50], _means(steps, values))
            found.append(replace(curve, plot=_plot(curve, failing)))
    return found


def _plot(curve: Curve, failing: Sequence[int]) -> Plot:
    return plotted(curve.steps, curve.values, means=curve.means, failing=failing, bad=curve.bad)


def _means(steps: list[int], values: list[float | None]) -> list[tuple[float, float]]:
    """The mean of each of `_MEANS` equal stretches, at its middle."""
    pairs = [(s, v) for s, v in zip(steps, values, strict=True) if v is not None]
    if len(pairs) < _FOR_MEANS:
        return []
    means = []
    for i in range(_MEANS):
        part = pairs[i * len(pairs) // _MEANS : (i + 1) * len(pairs) // _MEANS]
        # each is divided first: the sum of finite numbers may be none
        mean = math.fsum(value / len(part) for _, value in part)
        means.append((math.fsum(step for step, _ in part) / len(part), mean))
    return means


def _thinned(steps: list[int], values: list[float | None]) -> tuple[list[int], list[float | None]]:
    """At most so many points: of each stretch the one that is farthest from the one before."""
    if len(steps) <= _POINTS:
        return steps, values
    kept = [0]
    bounds = [i * len(steps) // _POINTS for i in range(_POINTS + 1)]
    for begin, end in pairwise(bounds):
        last = values[kept[-1]] or 0.0
        kept.append(max(range(begin, end), key=lambda i: abs((values[i] or 0.0) - last)))
    kept = sorted({*kept, len(steps) - 1})
    return [steps[i] for i in kept], [values[i] for i in kept]


def maps(history: Sequence[Mapping[str, Any]]) -> list[Map]:
    """The gradient norm and update ratio of each layer's parameters (of groups where no layer was
    measured), and the spread of each layer's output, at the sampled steps."""
    sampled = [
        line["sampled"]
        for line in history
        if isinstance(line.get("sampled"), dict) and isinstance(line["sampled"].get("step"), int)
    ]
    if len(sampled) < 2:
        return []
    every = max(1, math.ceil(len(sampled) / _STEPS))
    columns = sampled[::every]
    steps = [one["step"] for one in columns]
    ratios = _rows(columns, "parameters", 1)
    for column, one in enumerate(columns if not ratios else ()):
        for number, value in enumerate(one.get("update_ratios") or []):
            row = ratios.setdefault(f"group {number}", [None] * len(columns))
            row[column] = _number(value)
    made = (
        ("Gradient norm of each layer", _rows(columns, "parameters", 0)),
        ("Update ratio |Δw|/|w| of each layer", ratios),
        ("Standard deviation of each layer's output", _rows(columns, "layers", 1)),
    )
    return [_map(title, steps, rows) for title, rows in made if rows]


def _rows(
    columns: Sequence[Mapping[str, Any]], key: str, position: int
) -> dict[str, list[float | None]]:
    """One of the numbers that sampled steps hold for each layer, by layer and column."""
    rows: dict[str, list[float | None]] = {}
    for column, one in enumerate(columns):
        layers = one.get(key)
        for name, values in layers.items() if isinstance(layers, dict) else ():
            row = rows.setdefault(str(name) or "model", [None] * len(columns))
            if isinstance(values, list) and len(values) > position:
                row[column] = _number(values[position])
    return rows


def _map(title: str, steps: list[int], rows: Mapping[str, list[float | None]]) -> Map:
    finite = [v for row in rows.values() for v in row if v is not None]
    axis = axis_of([v for v in finite if v > 0], 0, 1)
    if not axis.log:
        axis = Axis(min(finite, default=0.0), max(finite, default=1.0), 0, 1)
    kept = list(rows.items())
    if len(kept) > _LAYERS:
        kept = [kept[i * len(kept) // _LAYERS] for i in range(_LAYERS)]
    low, high = (f"{v:.3g}" for v in (min(finite, default=0.0), max(finite, default=0.0)))
    cells = [(name, [_cell(v, axis) for v in row]) for name, row in kept]
    return Map(title, steps, low, high, axis.log, cells)


def _cell(value: float | None, axis: Axis) -> tuple[float, str] | None:
    return None if value is None else (_share(value, axis), f"{value:.3g}")


def _share(value: float, axis: Axis) -> float:
    return 0.0 if axis.log and value <= 0 else min(max(axis.at(value), 0.0), 1.0)


def bars(layers: Sequence[Magnitude]) -> Bars:
    """The largest output of each layer; of very many layers those around the first bad one."""
    bad = next((i for i, one in enumerate(layers) if one.nonfinite), 0)
    begin = max(0, min(bad - _LAYERS // 2, len(layers) - _LAYERS))
    shown = layers[begin : begin + _LAYERS]
    finite = [v for v in (_number(one.absmax) for one in shown) if v]
    axis = axis_of(finite, 0, 1, from_zero=True)
    rows = []
    for one in shown:
        value = _number(one.absmax)
        told = "" if one.absmax is None else f"{one.absmax:.3g}"
        if one.nonfinite:
            told = (f"{told}, " if value is not None else "") + f"{one.nonfinite} not finite"
        share = 1.0 if value is None else _share(value, axis)
        rows.append((one.module or "model", one.module_type, share, told, one.nonfinite > 0))
    return Bars(rows, axis.ticks() if finite else [], axis.log)


def _number(value: Any) -> float | None:
    """A finite number, else None; the history writes others as texts."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's whole numbers have no end
        return None
    return number if math.isfinite(number) else None


def failing_steps(steps: Iterable[int | None]) -> list[int]:
    """The steps of findings, each once."""
    return sorted({step for step in steps if step is not None})
