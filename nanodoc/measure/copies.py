"""Parts of a batch that lie in another part of it: targets that the model is given."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch

from nanodoc.facts.loop import CopyFacts

_FEWEST = 32  # samples
_FEWEST_CLASSES = 128  # samples of whole numbers, which agree by chance more easily
_KINDS = 8  # different values
_MOST_TARGETS = 16  # numbers a sample: more are a picture, a window
_MOST_INPUTS = 1 << 14
_EQUAL = 1e-6  # 1 − |correlation|: the rounding of float32 on the way to another scale


def copies(leaves: Mapping[str, Sequence[torch.Tensor]]) -> tuple[CopyFacts, ...]:
    """Parts of the batches all of whose numbers are, in every sample, numbers at fixed places of a
    larger floating part, perhaps on another scale. `leaves` holds the tensors of each part, whose
    first dimension counts samples."""
    found = []
    rows = {path: _rows(tensors) for path, tensors in leaves.items()}
    for (path, target), (other, given) in itertools.permutations(rows.items(), 2):
        if target is None or given is None or len(target) != len(given):
            continue
        floating = leaves[other][0].is_floating_point()
        wide = target.shape[1] <= _MOST_TARGETS and 2 * target.shape[1] <= given.shape[1]
        if not floating or not wide or given.shape[1] > _MOST_INPUTS or not _varied(path, leaves):
            continue
        places = _places(target, given)
        if places is not None:
            shape = leaves[other][0].shape[1:]
            found.append(
                CopyFacts(
                    path=path,
                    inside=other,
                    places=tuple(_index(place, tuple(shape)) for place in places),
                    samples=len(target),
                    equal=torch.allclose(given[:, places], target, rtol=_EQUAL, atol=1e-9),
                )
            )
    return tuple(found)


def _rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """(samples, numbers) of all batches; None for a part that has none."""
    if any(not t.dim() or t.shape[1:] != tensors[0].shape[1:] for t in tensors):
        return None
    whole = torch.cat([t.detach().cpu() for t in tensors]).double()
    return whole.reshape(len(whole), -1) if len(whole) >= _FEWEST else None


def _varied(path: str, leaves: Mapping[str, Sequence[torch.Tensor]]) -> bool:
    tensors = leaves[path]
    if tensors[0].is_floating_point():
        return len(torch.cat([t.flatten() for t in tensors]).unique()) >= _KINDS
    return sum(len(t) for t in tensors) >= _FEWEST_CLASSES


def _places(target: torch.Tensor, given: torch.Tensor) -> list[int] | None:
    """For each number of the target its place in `given`; None where one has none."""
    if not bool(torch.isfinite(target).all() and torch.isfinite(given).all()):
        return None
    one, other = _standardised(target), _standardised(given)
    if not bool((one.norm(dim=0) > 0).all()):
        return None  # it never changes
    alike = (one.T @ other).abs()
    best, places = alike.max(1)
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
