"""Pictures of a data set whose channels were put first by view or reshape, which moves none."""

from __future__ import annotations

from typing import Any

import torch

from nanodoc.examination.kept import held_arrays
from nanodoc.examination.lines_that import LineThatTurns
from nanodoc.examination.sample import Sample, as_tensor
from nanodoc.facts.items import MixedItem

_MOST_CHANNELS = 16
_SMALLEST = 8  # pixels of a side
_ROUNDING = 1e-3  # of the standard deviation: bytes become floats, and are scaled


def mixed_picture(sample: Sample) -> MixedItem | None:
    """A picture (C, H, W) whose values lie in the order in which those of one (H, W, C) lay, with
    the line after which it was so; None where no line is seen to do that."""
    parts = sample.draw(1)
    shapes = {path: tuple(part.shape) for path, part in parts.items() if _is_first(part.shape)}
    if not shapes or not sample.in_time():
        return None
    lines = LineThatTurns(_picture, _is_mixed)
    for _, held in held_arrays(sample.dataset, sample.index):
        row = held[sample.index] if held.dim() == 4 and sample.index < len(held) else None
        if row is not None and (picture := _picture(row)) is not None:
            lines.seen_before(picture)
    with lines as line:
        sample.draw(1)
    if line.found is None:
        return None
    path, (channels, height, width) = next(iter(shapes.items()))
    return MixedItem(
        index=sample.index,
        part=path,
        given=(height, width, channels),
        made=(channels, height, width),
        line=line.found,
    )


def _is_first(shape: tuple[int, ...]) -> bool:
    """Of a picture with its channels first."""
    if len(shape) != 3:
        return False
    channels, height, width = shape
    return 1 < channels <= _MOST_CHANNELS and min(height, width) >= _SMALLEST and channels < width


def _picture(value: Any) -> torch.Tensor | None:
    tensor = as_tensor(value)
    if tensor is None or tensor.dim() != 3:
        return None
    first, second, third = tensor.shape
    if not _is_first((first, second, third)) and not _is_first((third, first, second)):
        return None
    found = tensor.double()
    return found.clone() if bool(torch.isfinite(found).all()) else None


def _is_mixed(now: torch.Tensor, first: torch.Tensor) -> bool:
    """It has the values of the first, whose channels came last, in the same order."""
    channels, height, width = now.shape
    if first.shape != (height, width, channels) or not _is_first((channels, height, width)):
        return False
    one, other = now.flatten(), first.flatten()
    spread = one.std(), other.std()
    if not float(spread[0]) or not float(spread[1]):
        return False
    apart = (one - one.mean()) / spread[0] - (other - other.mean()) / spread[1]
    return float(apart.abs().max()) < _ROUNDING
