"""The scalars of history.jsonl, as experiment trackers take them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_SCALARS = {
    "loss": "loss",
    "grad_norm": "gradient norm",
    "lr": "learning rate",
    "scale": "loss scale",
    "seconds": "time/step seconds",
    "load_seconds": "time/load seconds",
    "samples_per_second": "time/samples per second",
    "peak_memory": "memory/peak bytes",
}


def steps_of(history: Path) -> Iterator[dict[str, Any]]:
    """The lines of a history that are of steps. Raises `OSError`."""
    for line in history.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        if "step" in values:
            yield values


def scalars(values: dict[str, Any]) -> Iterator[tuple[str, float, int]]:
    """(tag, value, step) of one line of the history; NaN and inf stay what they are."""
    step = int(values["step"])
    for key, tag in _SCALARS.items():
        number = _number(values.get(key))
        if number is not None:
            yield tag, number, step
    for position, rate in enumerate(values.get("learning_rates") or ()):
        number = _number(rate)
        if number is not None:
            yield f"learning rate/group {position}", number, step
    sampled = values.get("sampled") or {}
    at = int(sampled.get("step", step))
    for position, ratio in enumerate(sampled.get("update_ratios") or ()):
        if ratio:
            yield f"update ratio (log10)/group {position}", math.log10(ratio), at
    yield from _of_layers(sampled.get("parameters"), ("gradient norm", "update ratio"), at)
    yield from _of_layers(sampled.get("layers"), ("mean", "std", "zeros"), at)


def _of_layers(
    rows: Mapping[str, Sequence[Any]] | None, names: Sequence[str], step: int
) -> Iterator[tuple[str, float, int]]:
    for layer, values in (rows or {}).items():
        for name, value in zip(names, values, strict=False):
            number = _number(value)
            if number is not None:
                yield f"layers {name}/{layer or 'model'}", number, step


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, (bool, list, dict)) else float(value)
