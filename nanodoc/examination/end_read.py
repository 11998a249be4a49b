"""Whether a prediction is made of what a recurrent layer gives at the last position of a sequence,
where that position is padding: by the gradient of the scores with respect to the layer's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_FEWEST = 3  # paddings behind the last token
_ROWS = 8  # that are looked at


@dataclass(slots=True)
class Recurrence:
    """What `torch.lstm` and its kin have given."""

    output: torch.Tensor
    """(sequences, positions, features), as an output of the layer, or that output transposed."""
    state: torch.Tensor
    """The last hidden state."""
    time_first: bool

    @classmethod
    def of(cls, out: Any, shapes: set[tuple[int, int]]) -> Recurrence | None:
        """Of a layer that reads sequences of one of the shapes (sequences, positions); None of
        packed sequences, which end where their tokens do, and of layers that read both ways."""
        if not isinstance(out, tuple) or len(out) < 2 or out[0].dim() != 3:
            return None
        if out[0].shape[-1] != out[1].shape[-1]:
            return None  # the other direction ends at the first token
        first, second = out[0].shape[:2]
        if (first, second) in shapes:
            return cls(out[0], out[1], time_first=False)
        return cls(out[0], out[1], time_first=True) if (second, first) in shapes else None


def read_at_end(
    recurrence: Recurrence, scores: torch.Tensor, pads: torch.Tensor
) -> tuple[int, int]:
    """(of how many sequences that end with padding the scores are made of the last position alone,
    the median of their paddings there). `scores` by sequence, `pads` (sequences, positions)."""
    behind = pads.flip(1).long().cumprod(1).sum(1)
    rows = (behind >= _FEWEST).nonzero().flatten()[:_ROWS].tolist()
    if not rows or scores.shape[0] != pads.shape[0] or scores.dim() > 2:
        return 0, 0
    picked = scores[rows].reshape(-1)
    weights = torch.linspace(-1.0, 1.5, picked.numel(), device=picked.device, dtype=picked.dtype)
    try:
        by_output, by_state = torch.autograd.grad(
            (picked * weights).sum(),
            (recurrence.output, recurrence.state),
            retain_graph=True,
            allow_unused=True,
        )
    except RuntimeError:  # a graph that cannot be walked twice
        return 0, 0
    found = 0
    if by_output is not None:
        sizes = by_output.detach().float().norm(dim=-1)
        sizes = sizes.t() if recurrence.time_first else sizes
        found = sum(bool(sizes[row, -1] > 0 and not bool(sizes[row, :-1].any())) for row in rows)
    elif by_state is not None:
        found = sum(bool(by_state[:, row].any()) for row in rows)
    middle = int(behind[rows].median())
    return (found, middle) if found == len(rows) else (0, 0)
