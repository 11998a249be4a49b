"""What of its sequences a language model is asked for: the labels of a step beside the mask of its
attention. A padding that is the token of the end, too, may have been taken out of the labels with
it; and prompts may have been left in, and their answers out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from nanodoc.facts.inspection import EndFacts, PromptFacts
from nanodoc.tensors.nested import tensor_leaves

_FEWEST = 2  # sequences that end
_SHARE = 0.5  # of all: the others may be cut off
_ROWS = 4  # sequences whose labels all end early
_LEFT_OUT = 2  # tokens of each, and not all the same: those would be padding


def attention_masks(batches: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The parts of a batch that hold only 0 and 1, or only 1, by sequence and position."""
    for _, tensor in tensor_leaves(list(batches)):
        if tensor.dim() == 2 and not tensor.is_complex() and tensor.numel():
            ones = tensor == 1
            if bool((ones | (tensor == 0)).all()) and bool(ones.any()):
                yield ones


def labels_beside(
    ids: torch.Tensor, batches: Iterable[Any]
) -> tuple[str, torch.Tensor, int] | None:
    """(name of the leaf, labels as the batch brings them, the label that stands for none): a tensor
    of the shape of the `ids` which holds their tokens, and everywhere else one negative number.
    Models that shift such labels themselves may compute their loss by no function that is known."""
    for batch in batches:
        for name, tensor in tensor_leaves(batch, "batch"):
            if tensor.shape == ids.shape and tensor.dtype == torch.int64:
                labels = tensor.to(ids.device)
                out = labels[labels < 0].unique()
                if out.numel() == 1 and bool(((labels == ids) | (labels < 0)).all()):
                    return name, labels, int(out)
    return None


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


def asked_prompts(
    ids: torch.Tensor, labels: torch.Tensor, ignored: int, masks: Iterable[torch.Tensor]
) -> PromptFacts | None:
    """As `unasked_end`. None where any sequence is asked for its last tokens."""
    for mask in masks:
        if mask.shape == ids.shape and len(ids) >= _ROWS:
            kept, asked = mask.to(ids.device), (labels != ignored).to(ids.device)
            rows = [_left_out(*row) for row in zip(ids, asked, kept, strict=True)]
            if all(rows):
                total = int(kept.sum())
                return PromptFacts(rows=len(ids), asked=1 - sum(rows) / total)
    return None


def _left_out(ids: torch.Tensor, asked: torch.Tensor, kept: torch.Tensor) -> int:
    """How many tokens of a sequence stand behind the last one that is asked for; 0 where those that
    are asked for are not all of the others."""
    places = kept.nonzero()[:, 0].tolist()
    # the first token is nobody's label
    told = [bool(asked[place - 1]) for place in places[1:] if place <= len(asked)]
    count = sum(told)
    behind = ids[places[1 + count :]]
    if not count or not all(told[:count]) or len(behind.unique()) < _LEFT_OUT:
        return 0
    return len(behind)
