"""An image and its mask that random crops, shifts or rotations take from different places.

Two pictures alone do not tell that. So what the data set keeps of the image and of the mask is
filled with one and the same texture, and with its negative. What a draw gives back of both, its
difference, is free of everything else that the draw adds; where image and mask show the same place,
the one difference follows from the other. Whoever asks does so in a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from nanodoc.examination.kept import held_rows
from nanodoc.examination.lines_that import LineThatTurns
from nanodoc.examination.orientation import is_mask, plane
from nanodoc.examination.sample import Sample, as_tensor
from nanodoc.facts.items import ELSEWHERE, UnpairedItem
from nanodoc.facts.source import SourceSpan

_DRAWS = 12
_FEWEST = 3
"""Draws whose two parts show different places."""
_BLOT = 3  # pixels of the texture that go together
_VALUES = 16  # different ones: a picture has more
_FOLLOWS = 0.3  # of the variance, that one explains of the other
_COVERED = 0.5  # of the pixels, that show what the data set keeps of this sample
_SCALES = ((1, 8), (5, 4), (9, 3))
"""(pixels of a side that are averaged, groups of values): an image may be blurred, its mask not."""

_FEWEST_PATCHES = 6  # of them, beside each other: few values follow from any others


def placed_apart(sample: Sample, pairs: Sequence[tuple[str, str]]) -> UnpairedItem | None:
    """None where image and mask of each of the `pairs` show the same places, or where the data set
    does not keep them in arrays."""
    kept = _Kept.of(sample)
    if kept is None:
        return None
    try:
        draws = []
        for seed in range(1, _DRAWS + 1):
            if not sample.in_time():
                break
            draws.append(_differences(sample, kept, seed))
        told = {
            pair: [found for draw in draws if (found := _follows(draw, *pair)) is not None]
            for pair in pairs
        }
        if any(shares and min(shares) >= _FOLLOWS for shares in told.values()):
            return None  # the mask belongs to that image
        for (image, mask), shares in told.items():
            apart = [share for share in shares if share < _FOLLOWS]
            if len(apart) >= _FEWEST and 2 * len(shares) > len(draws):
                return UnpairedItem(
                    index=sample.index,
                    image=image,
                    mask=mask,
                    mask_shape=tuple(draws[0][mask].shape),
                    turns=((ELSEWHERE, ELSEWHERE),),
                    pairs=len(shares),
                    apart=len(apart),
                    line=_line(sample, kept, len(draws)),
                )
    finally:
        kept.put_back()
    return None


class _Kept:
    """What the data set keeps: arrays of images and of masks of the same height and width."""

    def __init__(self, images: list[torch.Tensor], masks: list[torch.Tensor]) -> None:
        self._images, self._masks = images, masks
        self._before = [(array, array.clone()) for array in (*images, *masks)]
        self._kinds = [mask.unique() for mask in masks]
        flat = plane(images[0])
        assert flat is not None  # as `of` chose them
        self.texture = _texture((flat.shape[0], flat.shape[1]))

    @classmethod
    def of(cls, sample: Sample) -> _Kept | None:
        arrays = list(held_rows(sample.dataset, sample.index, (2, 3)))
        masks = [array for array in arrays if is_mask(array)]
        sizes = {_size(mask) for mask in masks}
        images = [
            array
            for array in arrays
            if not is_mask(array)
            and plane(array) is not None
            and _size(array) in sizes
            and len(array.unique()) >= _VALUES
        ]
        sizes = {_size(image) for image in images}
        masks = [mask for mask in masks if _size(mask) in sizes]
        return cls(images, masks) if len(sizes) == 1 else None

    def fill(self, texture: torch.Tensor) -> None:
        """With a texture (height, width) of values from 0 to 1, each array in its own range."""
        with torch.no_grad():
            for array, before in self._before[: len(self._images)]:
                low, high = before.min().double(), before.max().double()
                array.copy_(_laid(low + texture * (high - low), array))
            for mask, kinds in zip(self._masks, self._kinds, strict=True):
                steps = (texture * len(kinds)).long().clamp(0, len(kinds) - 1)
                mask.copy_(_laid(kinds[steps], mask))

    def put_back(self) -> None:
        with torch.no_grad():
            for array, before in self._before:
                array.copy_(before)


def _size(picture: torch.Tensor) -> tuple[int, int] | None:
    flat = plane(picture)
    return (flat.shape[0], flat.shape[1]) if flat is not None else None


def _laid(values: torch.Tensor, array: torch.Tensor) -> torch.Tensor:
    """Values (height, width) in the layout of a picture."""
    if array.dim() == 2:
        return values
    return values[None] if array.shape[1:] == values.shape else values[..., None]


def _texture(size: tuple[int, int]) -> torch.Tensor:
    """(height, width): blots of random values from 0 to 1, each equally often."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(
        *(max(side // _BLOT, 2) for side in size), generator=generator, dtype=torch.float64
    )
    blots = F.interpolate(coarse[None, None], size, mode="bilinear", align_corners=False)
    ranks = blots.flatten().argsort().argsort()
    return (ranks.double() / max(len(ranks) - 1, 1)).reshape(size)


def _differences(sample: Sample, kept: _Kept, seed: int) -> Mapping[str, torch.Tensor]:
    """The parts of the draw with the texture, minus those of the draw with its negative."""
    kept.fill(kept.texture)
    first = sample.draw(seed)
    kept.fill(1 - kept.texture)
    second = sample.draw(seed)
    return {
        path: part.double() - second[path].double()
        for path, part in first.items()
        if path in second and second[path].shape == part.shape
    }


def _follows(draw: Mapping[str, torch.Tensor], image: str, mask: str) -> float | None:
    """The share of the variance of one that follows from the other; None where the draw shows too
    little of what the data set keeps."""
    flat = plane(draw[image]) if image in draw else None
    beside = draw[mask].squeeze() if mask in draw else None
    if flat is None or beside is None or flat.shape != beside.shape:
        return None
    both = torch.isfinite(flat) & torch.isfinite(beside) & (flat != 0) & (beside != 0)
    if float(both.double().mean()) < _COVERED or not bool(torch.isfinite(flat).all()):
        return None
    return max(
        max(_explained(first, second, groups), _explained(second, first, groups))
        for side, groups in _SCALES
        if side == 1 or side * _FEWEST_PATCHES <= min(flat.shape)
        for first, second in [(_smooth(flat, side), _smooth(beside, side))]
    )


def _smooth(values: torch.Tensor, side: int) -> torch.Tensor:
    return F.avg_pool2d(values[None, None], side, stride=1)[0, 0].flatten()


def _explained(values: torch.Tensor, by: torch.Tensor, groups: int) -> float:
    """The correlation ratio: the variance of the means of groups that are alike in `by`, of that of
    the values; 1 for values without any."""
    total = float(values.var(correction=0))
    if not total > 0:
        return 1.0
    order = by.argsort()
    means = [part.mean() for part in values[order].chunk(groups)]
    sizes = [len(part) for part in values[order].chunk(groups)]
    mean = values.mean()
    between = sum(size * float(m - mean) ** 2 for size, m in zip(sizes, means, strict=True))
    return between / (len(values) * total)


def _line(sample: Sample, kept: _Kept, draws: int) -> SourceSpan | None:
    """The first that gives one of the two another place."""
    kept.fill(kept.texture)
    for seed in range(1, draws + 1):
        lines = LineThatTurns(_picture, _moved, of_two=True)
        lines.seen_before(kept.texture)
        with lines as line:
            sample.draw(seed)
        if line.found is not None:
            return line.found
    return None


def _picture(value: object) -> torch.Tensor | None:
    tensor = as_tensor(value)
    flat = plane(tensor) if tensor is not None else None
    if flat is None or tensor is None or len(tensor.unique()) < _VALUES:
        return None
    return flat.double().clone()


def _moved(one: torch.Tensor, first: torch.Tensor) -> bool:
    if one.shape != first.shape:
        return True
    return _explained(one.flatten(), first.flatten(), 8) < _FOLLOWS
