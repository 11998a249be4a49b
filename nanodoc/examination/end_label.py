"""Whether a language model is ever asked for the end of a sequence: a padding that is the token of
the end, too, may have been taken out of the labels with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nanodoc.facts.inspection import EndFacts
from nanodoc.tensors.nested import tensor_leaves

_FEWEST = 2  # sequences that end
_SHARE = 0.5  # of all: the others may be cut off


def attention_masks(batches: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The parts of a batch that hold only 0 and 1, and both, by sequence and position."""
    for _, tensor in tensor_leaves(list(batches)):
        if tensor.dim() == 2 and not tensor.is_complex() and tensor.numel():
            ones = tensor == 1
            if bool((ones | (tensor == 0)).all()) and 0 < int(ones.sum()) < tensor.numel():
                yield ones


def unasked_end(
    ids: torch.Tensor, labels: torch.Tensor, ignored: int, masks: Iterable[torch.Tensor]
) -> EndFacts | None:
    """`ids` (sequences, positions), and at each position the label of the next one; `masks` as of
    `attention_masks`. None where an end is asked for, or nothing tells where the sequences end."""
    for mask in masks:
        if mask.shape == ids.shape:
            found = _unasked(ids, labels.to(ids.device), ignored, mask.to(ids.device))
            if found is not None:
                return found
    return None


def _unasked(
    ids: torch.Tensor, labels: torch.Tensor, ignored: int, mask: torch.Tensor
) -> EndFacts | None:
    padding = ids[~mask].unique()
    in_one_piece = (mask[:, 1:] != mask[:, :-1]).sum(1) <= 1
    if padding.numel() != 1 or not bool(in_one_piece.all()):
        return None
    value = int(padding)
    places = torch.arange(ids.shape[1], device=ids.device)
    last = (mask * places).amax(1)
    rows = (ids.gather(1, last[:, None])[:, 0] == value) & (last >= 2)
    ended = rows.nonzero()[:, 0]
    if len(ended) < max(_FEWEST, _SHARE * len(ids)) or bool((labels == value).any()):
        return None
    asked = labels != ignored
    # a sequence whose end is left out with what stands before it is left out as a whole
    if not bool(asked[ended, last[ended] - 2].all()):
        return None
    return EndFacts(value=value, rows=len(ended), of=len(ids))
