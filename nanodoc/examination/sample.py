"""One sample of a data set, drawn as often as needed, and the arrays in it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nanodoc.tensors.plain import is_plain

_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample number `index`, to be drawn until the clock (time.monotonic) says `until`."""

    dataset: Any
    index: int
    until: float

    def draw(self, seed: int) -> dict[str, torch.Tensor]:
        """The parts of the sample, copied."""
        seed_all(seed)
        return {path: part.clone() for path, part in parts_of(self.dataset[self.index])}

    def in_time(self) -> bool:
        return time.monotonic() < self.until


def seed_all(seed: int) -> None:
    """The generators of Python, torch (that of the CPU) and NumPy that all code shares."""
    random.seed(seed)
    # torch.manual_seed prepares every accelerator's as well: 2 ms where none is initialised
    torch.default_generator.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def parts_of(sample: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """The tensors, arrays and pictures of a sample, as plain tensors on the CPU."""
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from parts_of(value, f"{path}[{key!r}]", depth - 1) if depth else ()
    elif isinstance(sample, (list, tuple)):
        for number, value in enumerate(sample):
            yield from parts_of(value, f"{path}[{number}]", depth - 1) if depth else ()
    else:
        value = as_tensor(sample)
        if value is not None:
            yield path, value


def as_tensor(value: Any) -> torch.Tensor | None:
    """A tensor, an array of numbers or a picture, over the same memory where it has one; None for
    anything else."""
    if isinstance(value, torch.Tensor):
        plain = is_plain(value) and value.device.type == "cpu" and not value.is_complex()
        return value.detach() if plain and value.numel() else None
    if type(value).__module__.partition(".")[0] not in ("numpy", "PIL"):
        return None
    import numpy as np

    if not isinstance(value, np.ndarray) and not hasattr(value, "__array_interface__"):
        return None
    array = np.asarray(value)
    readable = array.dtype.kind in "biuf" and array.dtype.isnative and array.size
    if not readable or not array.flags.writeable or any(step < 0 for step in array.strides):
        array = array.copy() if readable else array
    try:
        return torch.from_numpy(array) if readable else None
    except TypeError:  # a dtype that torch does not have
        return None


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """They have the same shape, type and values; NaN is NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
