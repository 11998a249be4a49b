"""`history.jsonl` as TensorBoard's event files. Needs the `tensorboard` extra."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanodoc.errors import UsageError

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


def check_tensorboard(folder: Path) -> None:
    """Raises `UsageError` where TensorBoard is not installed or `folder` can't be written to:
    before a run, not after it."""
    try:
        import tensorboard  # type: ignore[import-untyped, unused-ignore]  # ships no types  # noqa: F401
    except ImportError as error:
        raise UsageError(
            '--tensorboard needs TensorBoard: pip install "nanodoc-torch[tensorboard]"'
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder with "
            "--tensorboard"
        ) from error


def write_tensorboard(history: Path, folder: Path) -> Path:
    """Writes every scalar of `history` into an event file below `folder`, which is made if need be.
    Raises `UsageError` where it can't."""
    check_tensorboard(folder)
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call, unused-ignore]  # unannotated in torch
    try:
        for line in history.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            if "step" in values:
                for tag, value, step in scalars(values):
                    writer.add_scalar(tag, value, step)  # type: ignore[no-untyped-call, unused-ignore]  # as above
    finally:
        writer.close()  # type: ignore[no-untyped-call, unused-ignore]  # as above
    return folder


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
    for layer, (mean, std, zeros) in (sampled.get("layers") or {}).items():
        for name, value in (("mean", mean), ("std", std), ("zeros", zeros)):
            number = _number(value)
            if number is not None:
                yield f"layers {name}/{layer or 'model'}", number, at


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, (bool, list, dict)) else float(value)
