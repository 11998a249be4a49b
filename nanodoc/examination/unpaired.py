"""An image and what belongs to it, its mask or the picture that is to be made of it: are they
mirrored and turned alike when a sample is drawn again with other random numbers?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from nanodoc.examination.lines_that import LineThatTurns
from nanodoc.examination.orientation import (
    is_mask,
    likeness,
    plane,
    turn_of_image,
    turn_of_mask,
)
from nanodoc.examination.placed_apart import placed_apart
from nanodoc.examination.sample import Sample, as_tensor
from nanodoc.facts.items import AS_IT_WAS, UnpairedItem
from nanodoc.facts.source import SourceSpan
from nanodoc.tensors.nested import keys_of
from nanodoc.trace.made_with import moves_only

_DRAWS = 12
_FEWEST_PAIRS = 3
"""Pairs of draws, of one sample, whose two parts lie differently: a picture that looks alike from
two sides gives one."""
_VALUES = 16  # different ones: a picture has more
_BELONGS = 0.8  # of a correlation, the two as they lie or turned

_Draw = Mapping[str, torch.Tensor]
_Turn = Callable[[torch.Tensor, torch.Tensor], "str | None"]


def unpaired_item(sample: Sample) -> UnpairedItem | None:
    """None where the parts lie alike in all draws, or where that can't be told."""
    first = sample.draw(1)
    masked, pictured = _images_and_masks(first), _two_pictures(first)
    if not masked and not pictured:
        return None
    draws = [first]
    for seed in range(2, _DRAWS + 1):
        if not sample.in_time():
            break
        draws.append(sample.draw(seed))
    return (
        _of(sample, draws, masked, turn_of_mask, "mask")
        or _of(
            sample,
            draws,
            [pair for pair in pictured if all(_belong(draw, *pair) for draw in draws)],
            _mirrored,
            "picture",
        )
        or (placed_apart(sample, masked) if masked else None)
    )


def _of(
    sample: Sample,
    draws: Sequence[_Draw],
    pairs: Sequence[tuple[str, str]],
    turn: _Turn,
    kind: str,
) -> UnpairedItem | None:
    seen = [(parts, list(_turns(draws, *parts, turn))) for parts in pairs]
    if any(all(one == other for one, other in turns) for _, turns in seen):
        return None  # the one belongs to that image
    for (image, beside), turns in seen:
        apart = [(one, other) for one, other in turns if one != other]
        if len(apart) >= _FEWEST_PAIRS:
            return UnpairedItem(
                index=sample.index,
                image=image,
                mask=beside,
                kind=kind,
                mask_shape=tuple(draws[0][beside].shape),
                turns=tuple(dict.fromkeys(apart)),
                pairs=len(turns),
                apart=len(apart),
                line=_turning_line(sample, len(draws)) or _told_of_one(image, beside),
            )
    return None


def _turning_line(sample: Sample, draws: int) -> SourceSpan | None:
    for seed in range(1, draws + 1):
        with LineThatTurns(_is_picture, _turned, of_two=True) as line:
            sample.draw(seed)
        if line.found is not None:
            return line.found
    return None


def _told_of_one(image: str, beside: str) -> SourceSpan | None:
    """Of a sample that is a dictionary: the transform that was told of one of the two keys."""
    keys = [keys_of(f"batch{path}") for path in (image, beside)]
    if any(len(key) != 1 or not isinstance(key[0], str) for key in keys):
        return None
    (one,), (other,) = keys
    return moves_only(str(one), str(other)) or moves_only(str(other), str(one))


def _images_and_masks(sample: _Draw) -> list[tuple[str, str]]:
    """Pairs of parts of the same height and width, one of many values and one of classes."""
    masks = {path: _plane(part) for path, part in sample.items() if is_mask(part)}
    return [
        (path, mask)
        for path, picture in _pictures(sample)
        if path not in masks
        for mask, flat in masks.items()
        if flat is not None and flat.shape == picture.shape
    ]


def _two_pictures(sample: _Draw) -> list[tuple[str, str]]:
    """Pairs of pictures, one as large as the other or smaller by the same factor in height and
    width."""
    found = [(path, picture) for path, picture in _pictures(sample) if not is_mask(sample[path])]
    return [
        (one, other)
        for (one, first), (other, second) in itertools.combinations(found, 2)
        if first.shape[0] * second.shape[1] == first.shape[1] * second.shape[0]
    ]


def _pictures(sample: _Draw) -> Iterator[tuple[str, torch.Tensor]]:
    for path, part in sample.items():
        picture = plane(part)
        if picture is not None and len(part.unique()) >= _VALUES:
            yield path, picture


def _belong(draw: _Draw, one: str, other: str) -> bool:
    """The two show the same thing, as they lie or with one of them mirrored or turned."""
    if one not in draw or other not in draw:
        return False
    first, second = plane(draw[one]), plane(draw[other])
    if first is None or second is None:
        return False
    small, large = sorted((first, second), key=torch.Tensor.numel)
    shrunk = F.adaptive_avg_pool2d(large.double()[None], (small.shape[0], small.shape[1]))[0]
    return likeness(small, shrunk) >= _BELONGS


def _plane(mask: torch.Tensor) -> torch.Tensor | None:
    """A mask has one channel or none."""
    return mask.squeeze() if mask.squeeze().dim() == 2 else None


def _turns(
    draws: Sequence[_Draw], image: str, beside: str, turn: _Turn
) -> Iterator[tuple[str, str]]:
    """Of every pair of draws where one of them was turned and both could be told."""
    flat = _plane if turn is turn_of_mask else plane
    kept = [draw for draw in draws if image in draw and beside in draw]
    for one, other in itertools.combinations(kept, 2):
        pictures = plane(one[image]), plane(other[image])
        others = flat(one[beside]), flat(other[beside])
        if pictures[0] is None or pictures[1] is None or others[0] is None or others[1] is None:
            continue
        turned = (turn_of_image if turn is turn_of_mask else turn)(pictures[0], pictures[1])
        also = turn(others[0], others[1]) if turned is not None else None
        if turned is not None and also is not None and {turned, also} != {AS_IT_WAS}:
            yield turned, also


def _mirrored(one: torch.Tensor, other: torch.Tensor) -> str | None:
    """None where it was turned: to turn a picture back may be what is learnt."""
    turn = turn_of_image(one, other)
    return turn if turn is None or turn == AS_IT_WAS or turn.startswith("mirrored") else None


def _is_picture(value: Any) -> torch.Tensor | None:
    tensor = as_tensor(value)
    picture = plane(tensor) if tensor is not None else None
    if picture is None or tensor is None or len(tensor.unique()) < _VALUES:
        return None
    return picture.clone()


def _turned(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and turn_of_image(one, other) not in (None, AS_IT_WAS)
