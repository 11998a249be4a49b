"""What the scores of a contrastive loss say of the pairs that it wants."""

from __future__ import annotations

import torch

from nanodoc.facts.notes import NOTHING, CallNotes, PairNotes
from nanodoc.vocabulary.calls import DISTANCES, SIMILARITIES

_FEWEST = 16  # rows: of fewer, nothing can be said
_ROUNDED = 1e-5  # of the largest score: float32, and sums in another order


class Pairings:
    """Of a loss whose labels pair the samples of a batch by being equal: which are paired, and how
    alike all of them are."""

    def __init__(self) -> None:
        self._partners: torch.Tensor | None = None
        self._scores: torch.Tensor | None = None

    def note(self, name: str, out: torch.Tensor) -> CallNotes:
        """What the call that compares the labels says of them, and the nearness of pairs of that
        call or of the one that compares the samples, whichever comes later; `NOTHING` for other
        calls."""
        if out.dim() != 2 or out.shape[0] != out.shape[1]:
            return NOTHING
        paired: bool | None = None
        if name == "eq" and out.dtype == torch.bool:
            partners = _partners(out)
            if partners is None:
                return CallNotes(paired_by_labels=False) if _is_identity(out) else NOTHING
            self._partners, paired = partners, True
        elif name in (*SIMILARITIES, *DISTANCES) and out.requires_grad and out.is_floating_point():
            self._scores = -out.detach() if name in DISTANCES else out.detach()
        else:
            return NOTHING
        if self._partners is None or self._scores is None:
            return CallNotes(paired_by_labels=paired)
        pairs = nearness_of_pairs(self._scores, self._partners)
        return CallNotes(paired_by_labels=paired, pairs=pairs)


def _is_identity(equal: torch.Tensor) -> bool:
    return len(equal) > 1 and bool(equal.diagonal().all()) and int(equal.sum()) == len(equal)


def _partners(equal: torch.Tensor) -> torch.Tensor | None:
    """The other sample of each one's label, (n,), where there are two of every label."""
    rows = len(equal)
    if rows < _FEWEST or not bool((equal.sum(1) == 2).all() and equal.diagonal().all()):
        return None
    others = equal & ~torch.eye(rows, dtype=torch.bool, device=equal.device)
    return others.long().argmax(1)


def _are_same(values: torch.Tensor, targets: torch.Tensor) -> bool:
    """The two of every pair have the same scores with all others, up to rounding, and other samples
    have other ones."""
    own = torch.zeros_like(values, dtype=torch.bool)
    own.fill_diagonal_(True).scatter_(1, targets[:, None], True)
    others = values.masked_fill(own, 0.0)  # a loss may have masked a sample's score with itself
    largest = float(others.abs().max())
    apart = float((others - others[targets]).abs().max())
    strangers = float((others - others.roll(1, 0)).abs().amax(1).median())
    return apart <= _ROUNDED * largest and strangers > 100 * _ROUNDED * largest


def nearness_of_pairs(scores: torch.Tensor, targets: torch.Tensor) -> PairNotes | None:
    """How near the rows of `scores` (n, n) are to those that `targets` (n,) names: the share of the
    other rows in that one's half of the batch that are farther, the mean over all rows; and the
    same of the other view of its sample, where views lie in two halves, or side by side. None for
    targets that do not pair all rows."""
    rows = len(targets) if targets.dim() == 1 else 0
    if rows < _FEWEST or rows % 2 or scores.shape != (rows, rows) or targets.is_floating_point():
        return None
    place = torch.arange(rows, device=targets.device)
    if int(targets.min()) < 0 or int(targets.max()) >= rows:
        return None
    if not bool((targets[targets] == place).all()) or bool((targets == place).any()):
        return None
    values = scores.detach().float()

    def nearness(other: torch.Tensor) -> float:
        theirs = values.gather(1, other[:, None])
        # two encoders may keep the halves apart: only what lies in the same one is compared
        half = place[None, :] * 2 // rows == other[:, None] * 2 // rows
        rivals = half & (place[None, :] != place[:, None]) & (place[None, :] != other[:, None])
        farther = (values < theirs).float() + (values == theirs).float() / 2
        return float((farther * rivals).sum(1).div(rivals.sum(1)).mean())

    return PairNotes(
        wanted=nearness(targets),
        in_halves=nearness((place + rows // 2) % rows),
        side_by_side=nearness(place ^ 1),
        same=_are_same(values, targets),
    )
