"""Whether what is predicted of a padded sequence depends on its padding, and on its tokens: by the
gradient of the scores with respect to the embedded ids."""

from __future__ import annotations

import torch

from nanodoc.facts.inspection import PaddingFacts

_FEWEST = 2  # paddings of a row that is looked at
_TOKENS = 6  # of it: one in the middle has others on both sides
_ROWS = 3  # that are looked at
_INSIDE = 0.05  # of the paddings: the pad value may be a token elsewhere
_READS = 1e-3
"""Times the largest gradient of the row: less is what a mask of −1e4 lets through, or rounding."""
_NOTHING = 1e-5


def padding_value(ids: torch.Tensor) -> int | None:
    """The value whose runs, of different lengths, end or begin the rows; None where there is
    none."""
    for rows in (ids.flip(1), ids):
        value = rows[:, 0].mode().values
        same = rows == value
        lengths = same.long().cumprod(1).sum(1)
        inside = int(same.sum()) - int(lengths.sum())
        if int(lengths.unique().numel()) > 2 and inside <= _INSIDE * int(lengths.sum()):
            return int(value)
    return None


def padding_facts(
    scores: torch.Tensor, ids: torch.Tensor, embedded: torch.Tensor
) -> PaddingFacts | None:
    """`ids` and `embedded` by sequence and position, the embedded ones with their features last;
    `scores` by sequence, or by sequence and position. None where that can't be told."""
    pad = padding_value(ids)
    if pad is None:
        return None
    count, length = ids.shape
    pads = ids == pad
    fitting = (pads.sum(1) >= _FEWEST) & ((~pads).sum(1) >= _TOKENS)
    chosen = fitting.nonzero().flatten()[:_ROWS].tolist()
    read = ignored = 0
    for row in chosen:
        ends = (~pads[row]).nonzero().flatten()
        own = int(ends[len(ends) // 2])
        picked = _picked(scores, row, own, count, length)
        if picked is None:
            return None
        sizes = _gradient(picked, embedded)
        if sizes is None:
            return None
        # the position itself, and those that summaries are read at, have ways around attention
        others = ~pads[row]
        others[[int(ends[0]), int(ends[-1]), own]] = False
        largest = sizes[row].max()
        read += bool(sizes[row][pads[row]].max() > _READS * largest)
        ignored += bool(sizes[row][others].max() < _NOTHING * largest)
    if not chosen:
        return None
    return PaddingFacts(
        value=pad,
        share=float(pads.float().mean()),
        rows=len(chosen),
        reads_padding=read,
        ignores_tokens=ignored,
    )


def _picked(
    scores: torch.Tensor, row: int, position: int, count: int, length: int
) -> torch.Tensor | None:
    if scores.shape[0] == count and scores.dim() == 2:
        return scores[row]
    if scores.dim() == 2 and scores.shape[0] == count * length:
        return scores[row * length + position]
    if scores.dim() == 3 and scores.shape[0] == count and scores.shape[2] == length:
        return scores[row, :, position]
    return scores[row] if scores.dim() == 1 and scores.shape[0] == count else None


def _gradient(picked: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor | None:
    flat = picked.reshape(-1)
    weights = torch.linspace(-1.0, 1.5, flat.numel(), device=flat.device, dtype=flat.dtype)
    try:
        (gradient,) = torch.autograd.grad(
            (flat * weights).sum(), embedded, retain_graph=True, allow_unused=True
        )
    except RuntimeError:  # a graph that cannot be walked twice
        return None
    if gradient is None:
        return None
    sizes: torch.Tensor = gradient.detach().float().norm(dim=-1)
    return sizes
