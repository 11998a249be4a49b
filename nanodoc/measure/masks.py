"""What an attention's mask, or its masked scores, let each position see."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from nanodoc.facts.notes import AdmittedNotes, MaskNotes
from nanodoc.vocabulary.calls import ATTENTION

_BLOCKS = -1e4
"""A number added to a score that leaves nothing of it."""
_MOST = 20_000_000


def of_given_mask(name: str, tensors: Iterable[torch.Tensor]) -> MaskNotes | None:
    """Of a call of attention: whether its mask lets each position see exactly what comes after."""
    for tensor in tensors:
        if not _is_square(tensor) or tensor.requires_grad:
            continue
        if tensor.dtype == torch.bool:
            # the two functions mean the opposite by True
            blocked = ~tensor if name == ATTENTION[0] else tensor
        elif tensor.is_floating_point() and bool(((tensor == 0) | (tensor <= _BLOCKS)).all()):
            blocked = tensor <= _BLOCKS
        else:
            continue
        return _seen(blocked)
    return None


def of_masked_scores(scores: torch.Tensor) -> MaskNotes | None:
    """The same of the scores that a softmax over their last dimension is given."""
    if scores.dim() < 3 or not _is_square(scores) or not scores.is_floating_point():
        return None
    return _seen(scores <= _BLOCKS)


def _is_square(tensor: torch.Tensor) -> bool:
    square = tensor.dim() >= 2 and tensor.shape[-1] == tensor.shape[-2] > 2
    return square and tensor.numel() <= _MOST


def _seen(blocked: torch.Tensor) -> MaskNotes | None:
    """None where some position sees another one before it, or none that comes after it."""
    for diagonal in (0, -1):
        if bool((blocked == torch.ones_like(blocked).tril(diagonal)).all()):
            return MaskNotes(positions=blocked.shape[-1], sees_itself=diagonal == -1)
    return None


_FEWEST_ROWS = 4  # that are let through, and that are hidden
_MOST_ROWS = 1 << 22  # values


class Admitted:
    """The rows that one mask of a step lets through, over several batches. The weights are the same
    in all of them."""

    def __init__(self) -> None:
        self._row: torch.Tensor | None = None
        self._kept = self._hidden = 0
        self._differ = False
        self._other = False
        """Something else was let through."""

    def add(self, given: torch.Tensor, mask: torch.Tensor) -> AdmittedNotes | None:
        """`given` is multiplied with `mask`, which has one value for each of its rows."""
        pair = None if self._other else _rows(given, mask)
        if pair is None:
            self._other = True
            return None
        rows, kept = pair
        through, hidden = rows[kept], rows[~kept]
        if len(through):
            self._row = through[0] if self._row is None else self._row
            self._other = self._row.shape != through.shape[1:] or bool((through != self._row).any())
        self._differ = self._differ or bool((hidden != hidden[:1]).any())
        self._kept, self._hidden = self._kept + len(through), self._hidden + len(hidden)
        if self._other or self._row is None or not self._differ:
            return None
        if min(self._kept, self._hidden) < _FEWEST_ROWS:
            return None
        return AdmittedNotes(kept=self._kept, hidden=self._hidden, zeros=not bool(self._row.any()))


def _rows(given: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """(the rows, which of them are let through); None where the mask is no mask of rows."""
    if given.dim() != mask.dim() or mask.requires_grad or given.numel() > _MOST_ROWS:
        return None
    inside = [d for d in range(mask.dim()) if mask.shape[d] == 1 < given.shape[d]]
    around = [d for d in range(mask.dim()) if d not in inside]
    if not inside or any(mask.shape[d] != given.shape[d] for d in around):
        return None
    if not bool(((mask == 0) | (mask == 1)).all()):
        return None
    rows = given.detach().permute(*around, *inside)
    return rows.flatten(len(around)).flatten(0, len(around) - 1), (mask == 1).flatten()
