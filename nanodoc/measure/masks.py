"""What an attention's mask, or its masked scores, let each position see."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from nanodoc.facts.notes import MaskNotes
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
