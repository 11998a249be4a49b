"""Parts of a batch that lie in another part of it: targets that the model is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from nanodoc.facts.loop import CopyFacts

_FEWEST = 32  # samples
_MOST = 1024  # samples that are compared
_FEWEST_OTHERS = 16  # whole numbers: samples besides the most frequent value
_KINDS = 8  # different values
_MOST_TARGETS = 16  # numbers a sample: more are a picture, a window
_MOST_INPUTS = 1 << 12
_EQUAL = 1e-6  # 1 − |correlation|: the rounding of float32 on the way to another scale


def copies(leaves: Mapping[str, Sequence[torch.Tensor]]) -> tuple[CopyFacts, ...]:
    """Parts of the batches all of whose numbers are, in every sample, numbers at fixed places of a
    larger floating part, perhaps on another scale. `leaves` holds the tensors of each part, whose
    first dimension counts samples."""
    widths = {path: _width(tensors) for path, tensors in leaves.items()}
    small = [path for path, width in widths.items() if 0 < width <= _MOST_TARGETS]
    targets = {path: rows_of(leaves[path]) for path in small}
    found = []
    for inside, width in widths.items():
        first = leaves[inside][0]
        fits = [p for p in small if p != inside and 2 * widths[p] <= width and _varied(targets[p])]
        if not fits or not first.is_floating_point() or width > _MOST_INPUTS:
            continue
        given = rows_of(leaves[inside])
        if not bool(torch.isfinite(given).all()):
            continue
        columns = _standardised(given)
        for path in fits:
            target = targets[path]
            places = _places(target, columns) if len(target) == len(given) else None
            if places is not None:
                shape = tuple(first.shape[1:])
                found.append(
                    CopyFacts(
                        path=path,
                        inside=inside,
                        places=tuple(_index(place, shape) for place in places),
                        samples=len(target),
                        equal=torch.allclose(given[:, places], target, rtol=_EQUAL, atol=1e-9),
                    )
                )
    return tuple(found)


def _width(tensors: Sequence[torch.Tensor]) -> int:
    """Numbers a sample; 0 for a part without samples, or with too few."""
    first = tensors[0]
    if any(not t.dim() or t.shape[1:] != first.shape[1:] for t in tensors):
        return 0
    samples = sum(len(t) for t in tensors)
    return first[0].numel() if samples >= _FEWEST and len(first) else 0


def rows_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """(samples, numbers) of the batches, up to `_MOST` samples."""
    rows: list[torch.Tensor] = []
    left = _MOST
    for tensor in tensors:
        part = tensor.detach()[:left]
        rows.append(part.cpu().double().reshape(len(part), -1))
        left -= len(part)
        if left <= 0:
            break
    return torch.cat(rows)


def _varied(target: torch.Tensor) -> bool:
    """Numbers that agree with others by chance less easily than a rare class does."""
    values, counts = target.unique(return_counts=True)
    whole = bool((values == values.round()).all())
    others = int(counts.sum() - counts.max())
    return others >= _FEWEST_OTHERS if whole else len(values) >= _KINDS


def _places(target: torch.Tensor, columns: torch.Tensor) -> list[int] | None:
    """For each number of the target its place among the standardised `columns`; None where one has
    none."""
    if not bool(torch.isfinite(target).all()):
        return None
    one = _standardised(target)
    if not bool((one.norm(dim=0) > 0).all()):
        return None  # it never changes
    best, places = (one.T @ columns).abs().max(1)
    return places.tolist() if bool((best > 1 - _EQUAL).all()) else None


def _standardised(values: torch.Tensor) -> torch.Tensor:
    """Each column less its mean, of length 1; 0 where it does not change."""
    centred = values - values.mean(0)
    sizes = centred.norm(dim=0)
    moving = sizes > 1e-9 * values.norm(dim=0)
    return torch.where(moving, centred / sizes.clamp(min=1e-300), 0.0)


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(place % size)
        place //= size
    return tuple(reversed(index))
