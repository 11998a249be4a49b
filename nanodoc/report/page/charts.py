"""What the page draws of a run: its course step by step and its layers at the sampled steps, from
history.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from nanodoc.facts.frames import Magnitude

_LARGEST = 256 * 2**20  # bytes of a history that is read
_POINTS = 2000  # of a curve: more than a screen has columns
_LAYERS, _STEPS = 60, 40  # rows and columns of the map
_SERIES = (
    ("loss", "loss", "loss"),
    ("gradient norm", "grad_norm", "gradient norm"),
    ("learning rate", "lr", "learning rate"),
    ("loss scale", "scale", "loss scale"),
    ("throughput", "samples_per_second", "samples/s"),
)


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity by step. `values` are None where they are not finite."""

    title: str
    unit: str
    steps: list[int]
    values: list[float | None]
    bad: list[int]
    """The steps at which it was not finite."""

    @property
    def told(self) -> str:
        """The curve in words, for those who cannot see it."""
        finite = [value for value in self.values if value is not None]
        if not finite:
            return f"{self.title}: no finite value"
        unit = f" ({self.unit})" if self.unit != self.title else ""
        text = f"{self.title}{unit}: {finite[0]:.4g} to {finite[-1]:.4g}, at most {max(finite):.4g}"
        return text + (f", not finite at step {self.bad[0]}" if self.bad else "")


@dataclass(frozen=True, slots=True)
class Map:
    """A heat map: rows of layers or groups, columns of steps; a cell is (share of the colour's
    range, text), or None."""

    title: str
    steps: list[int]
    rows: list[tuple[str, list[tuple[float, str] | None]]] = field(default_factory=list)


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
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            steps.append(values)
    return steps


def curves(history: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The curves that say something: those that are there, and the loss."""
    found = []
    for title, key, unit in _SERIES:
        pairs = [(line["step"], line[key]) for line in history if line.get(key) is not None]
        steps = [step for step, _ in pairs]
        values = [_number(value) for _, value in pairs]
        bad = [step for step, value in zip(steps, values, strict=True) if value is None]
        constant = len(set(values)) < 2
        if len(steps) > 2 and not (constant and key in ("lr", "scale")):
            found.append(Curve(title, unit, *_thinned(steps, values), bad[:50]))
    return found


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
        ("gradient norm of each layer", _rows(columns, "parameters", 0)),
        ("update ratio |Δw|/|w|", ratios),
        ("standard deviation of each layer's output", _rows(columns, "layers", 1)),
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
    """On a logarithmic scale, from the smallest to the largest value."""
    logs = [math.log10(v) for row in rows.values() for v in row if v is not None and v > 0]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    span = (high - low) or 1.0
    kept = list(rows.items())
    if len(kept) > _LAYERS:
        kept = [kept[i * len(kept) // _LAYERS] for i in range(_LAYERS)]
    return Map(title, steps, [(name, [_cell(v, low, span) for v in row]) for name, row in kept])


def bars(layers: Sequence[Magnitude]) -> list[tuple[str, str, float, str, bool]]:
    """(layer, type, share of the longest bar, text, whether something is not finite) of each layer,
    on a logarithmic scale; the first, those around the first bad one, and the last of very many."""
    logs = [
        math.log10(one.absmax)
        for one in layers
        if one.absmax is not None and math.isfinite(one.absmax) and one.absmax > 0
    ]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)
    bad = next((i for i, one in enumerate(layers) if one.nonfinite), 0)
    begin = max(0, min(bad - _LAYERS // 2, len(layers) - _LAYERS))
    found = []
    for one in layers[begin : begin + _LAYERS]:
        value = one.absmax
        finite = value is not None and math.isfinite(value)
        told = "" if value is None else f"max {value:.3g}"
        if one.nonfinite:
            told = (f"{told}, " if finite else "") + f"{one.nonfinite} not finite"
        share = 1.0
        if finite:
            place = math.log10(value) if value is not None and value > 0 else low
            share = 0.05 + 0.95 * (place - low) / ((high - low) or 1.0)
        found.append((one.module or "model", one.module_type, share, told, one.nonfinite > 0))
    return found


def _cell(value: float | None, low: float, span: float) -> tuple[float, str] | None:
    if value is None:
        return None
    share = (math.log10(value) - low) / span if value > 0 else 0.0
    return share, f"{value:.3g}"


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
