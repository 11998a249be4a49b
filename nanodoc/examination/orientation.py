"""How one picture lies relative to another: as it was, mirrored, or turned by a right angle."""

from __future__ import annotations

from collections.abc import Callable

import torch

from nanodoc.facts.items import AS_IT_WAS

_SMALLEST = 8  # pixels of a side; fewer look alike by chance
_ALIKE, _APART = 0.95, 0.15  # of a correlation: the best, and what it is ahead of the next
_SAME, _OTHER = 0.95, 0.8  # share of a mask's pixels
_MOST_CLASSES = 256
_FEW_CLASSES = 32  # of floats: a grey picture's values may be whole numbers, too

_Turn = Callable[[torch.Tensor], torch.Tensor]
_KEEPING_SHAPE: dict[str, _Turn] = {
    AS_IT_WAS: lambda picture: picture,
    "mirrored left to right": lambda picture: picture.flip(1),
    "mirrored top to bottom": lambda picture: picture.flip(0),
    "turned by 180°": lambda picture: picture.flip(0, 1),
}
_OF_SQUARES: dict[str, _Turn] = {
    "turned by 90°": lambda picture: picture.rot90(1),
    "turned by 270°": lambda picture: picture.rot90(3),
    "transposed": lambda picture: picture.T,
    "transposed across": lambda picture: picture.rot90(2).T,
}


def plane(values: torch.Tensor) -> torch.Tensor | None:
    """The mean over the channels, (height, width), of a picture (height, width), (channels, height,
    width) or (height, width, channels); None where it is none."""
    if values.dim() == 2:
        found = values
    elif values.dim() != 3:
        return None
    elif values.shape[0] <= 4:
        found = values.double().mean(0)
    elif values.shape[2] <= 4:
        found = values.double().mean(2)
    else:
        return None
    return found if min(found.shape) >= _SMALLEST else None


def is_mask(values: torch.Tensor) -> bool:
    """It holds class numbers, or 0 and 1, and at least two of them."""
    if plane(values) is None or (values.dim() == 3 and 1 not in values.shape):
        return False
    kinds = values.unique()
    if not 2 <= len(kinds) <= _MOST_CLASSES:
        return False
    if values.is_floating_point():
        numbers = len(kinds) <= _FEW_CLASSES and bool((kinds == kinds.round()).all())
        return len(kinds) == 2 or (numbers and len(kinds) <= values.numel() // 16)
    return len(kinds) <= values.numel() // 16


def turn_of_image(one: torch.Tensor, other: torch.Tensor) -> str | None:
    """How picture `one` (height, width) lies relative to `other`, by their correlation: a change of
    brightness or contrast does not count. None where it cannot be told."""
    scores = {
        name: _correlation(one, turned)
        for name, turned in _turned(other)
        if turned.shape == one.shape
    }
    return _best(scores, _ALIKE, lambda best: best - _APART)


def turn_of_mask(one: torch.Tensor, other: torch.Tensor) -> str | None:
    """The same of masks, by the share of equal pixels among those that are not in both of the most
    frequent class."""
    common = other.mode().values.mode().values
    scores = {}
    for name, turned in _turned(other):
        if turned.shape == one.shape:
            told = (one != common) | (turned != common)
            scores[name] = float((one == turned)[told].double().mean()) if bool(told.any()) else 1.0
    return _best(scores, _SAME, lambda best: _OTHER)


def _turned(picture: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    square = picture.shape[0] == picture.shape[1]
    turns = {**_KEEPING_SHAPE, **(_OF_SQUARES if square else {})}
    return [(name, turn(picture)) for name, turn in turns.items()]


def likeness(one: torch.Tensor, other: torch.Tensor) -> float:
    """The correlation of two pictures of one shape, as they lie or turned, whichever is larger."""
    return max(
        _correlation(one, turned) for _, turned in _turned(other) if turned.shape == one.shape
    )


def _best(
    scores: dict[str, float], alike: float, most_of_others: Callable[[float], float]
) -> str | None:
    name = max(scores, key=lambda key: scores[key], default=None)
    if name is None or not scores[name] >= alike:
        return None
    rest = [score for key, score in scores.items() if key != name]
    return name if all(score <= most_of_others(scores[name]) for score in rest) else None


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    """Pearson's; 0 for a picture of one colour."""
    first, second = one.double() - one.double().mean(), other.double() - other.double().mean()
    size = float(first.norm() * second.norm())
    return float((first * second).sum()) / size if size > 0 else 0.0
