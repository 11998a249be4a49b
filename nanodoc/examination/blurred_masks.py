"""Masks of classes that were resized or turned by interpolation: between the areas of two classes
lie values of neither."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from nanodoc.examination.lines_that import LineThatTurns
from nanodoc.examination.orientation import plane
from nanodoc.examination.sample import Sample, as_tensor
from nanodoc.facts.items import BlurredMask

_EVEN = 0.5  # of the pixels: a mask has areas, a photograph has none
_MOST_CLASSES = 64
_FEWEST = 8  # pixels between areas
_BETWEEN = 0.7  # of those pixels: others are thin lines of a class, or were rounded the other way
_GRAIN = 1e-4  # of the range: closer values are the same
_SHOWN = 6


def blurred_mask(sample: Sample) -> BlurredMask | None:
    """A mask beside a picture of the same height and width, with the line after which it had
    values that it had not before; None where no line is seen to do that."""
    parts = sample.draw(1)
    flat = {path: _single(part) for path, part in parts.items()}
    known = {path: areas_of(value) for path, value in flat.items() if value is not None}
    masks = {path: areas for path, areas in known.items() if areas is not None and len(areas.odd)}
    if len(masks) != 1 or not sample.in_time():
        return None  # of two, one may be the picture
    [(path, areas)] = masks.items()
    if parts[path].is_floating_point() and areas.classes == 2:
        return None  # shares of the one class that there is, as wanted at its border
    size = tuple(parts[path].squeeze().shape)
    beside = (plane(part) for other, part in parts.items() if other != path)
    if not any(
        found is not None and tuple(found.shape) == size and areas_of(found) is None
        for found in beside
    ):
        return None  # of two parts with areas, it may be the picture
    with LineThatTurns(_mask_in, _has_more_values) as line:
        sample.draw(1)
    if line.found is None:
        return None
    values = areas.odd.unique()
    return BlurredMask(
        index=sample.index,
        mask=path,
        mask_shape=tuple(parts[path].shape),
        values=tuple(float(value) for value in values[:_SHOWN]),
        pixels=areas.odd.numel(),
        share=areas.odd.numel() / parts[path].numel(),
        line=line.found,
    )


class Areas(NamedTuple):
    """Of a picture with areas of one value each."""

    classes: int
    """How many values form areas."""
    odd: torch.Tensor
    """The values, one a pixel, that form none and lie between a smaller and a larger neighbour."""


def areas_of(flat: torch.Tensor) -> Areas | None:
    """Of a picture (height, width). None where it has no areas, or where the values that form none
    are few, or some of them do not lie between two others."""
    values = flat.double()
    grain = _GRAIN * float(values.max() - values.min())
    if not 0 < grain < float("inf"):
        return None
    values = (values / grain).round() * grain  # sums of weights are 1 up to rounding
    inner = values[1:-1, 1:-1]
    around = torch.stack((values[:-2, 1:-1], values[2:, 1:-1], values[1:-1, :-2], values[1:-1, 2:]))
    even = (around == inner).all(0)
    if float(even.double().mean()) < _EVEN:
        return None
    classes = inner[even].unique()
    odd = ~torch.isin(inner, classes)
    if not 2 <= len(classes) <= _MOST_CLASSES or 0 < int(odd.sum()) < _FEWEST:
        return None
    batch = values[None, None]
    high, low = F.max_pool2d(batch, 3, 1)[0, 0], -F.max_pool2d(-batch, 3, 1)[0, 0]
    between = (low < inner) & (inner < high) & odd
    if int(between.sum()) < _BETWEEN * int(odd.sum()):
        return None
    return Areas(len(classes), inner[between])


def _single(part: torch.Tensor) -> torch.Tensor | None:
    """A picture of one channel, (height, width)."""
    flat = part.squeeze()
    found = plane(flat) if flat.dim() == 2 else None
    return found if found is not None and bool(torch.isfinite(found.double()).all()) else None


def _mask_in(value: Any) -> torch.Tensor | None:
    tensor = as_tensor(value)
    flat = _single(tensor) if tensor is not None else None
    if flat is None or areas_of(flat) is None:
        return None
    return flat.double().clone()


def _has_more_values(one: torch.Tensor, first: torch.Tensor) -> bool:
    """It is the first mask, with values between those that the first mask has."""
    now, before = areas_of(one), areas_of(first)
    if now is None or before is None or not len(now.odd) or len(before.odd):
        return False
    odd, classes = now.odd, first.unique()
    apart = (odd[:, None] - classes).abs().min() > _GRAIN * (classes[-1] - classes[0])
    return bool(apart and odd.min() > classes[0] and odd.max() < classes[-1])
