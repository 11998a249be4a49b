"""What the scores of a contrastive loss say of the pairs that it wants."""

from __future__ import annotations

import torch

_FEWEST = 16  # rows: of fewer, nothing can be said
_ROUNDED = 1e-5  # of the largest score: float32, and sums in another order
_ALIKE = ("matmul", "mm", "rmatmul", "einsum", "cosine_similarity")
_APART = ("cdist",)


class Pairings:
    """Of a loss whose labels pair the samples of a batch by being equal: which are paired, and how
    alike all of them are."""

    def __init__(self) -> None:
        self._partners: torch.Tensor | None = None
        self._scores: torch.Tensor | None = None

    def note(self, name: str, out: torch.Tensor) -> dict[str, float]:
        """`pairing` of the call that compares the labels, `no_pairs` where no two samples have one
        label; the nearness of pairs of that call or of the one that compares the samples, whichever
        comes later."""
        if out.dim() != 2 or out.shape[0] != out.shape[1]:
            return {}
        told: dict[str, float] = {}
        if name == "eq" and out.dtype == torch.bool:
            partners = _partners(out)
            if partners is None:
                return {"no_pairs": 1.0} if _is_identity(out) else {}
            self._partners, told = partners, {"pairing": 1.0}
        elif name in (*_ALIKE, *_APART) and out.requires_grad and out.is_floating_point():
            self._scores = -out.detach() if name in _APART else out.detach()
        else:
            return {}
        if self._partners is None or self._scores is None:
            return told
        return told | nearness_of_pairs(self._scores, self._partners)


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


def nearness_of_pairs(scores: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """How near the rows of `scores` (n, n) are to those that `targets` (n,) names: the share of the
    other rows in that one's half of the batch that are farther, the mean over all rows; 0.5 for
    strangers, 1 for the nearest. And the same of the other view of its sample, where views lie in
    two halves, or side by side; `pairs_same` where the two of every pair are one. Nothing for
    targets that do not pair all rows."""
    rows = len(targets) if targets.dim() == 1 else 0
    if rows < _FEWEST or rows % 2 or scores.shape != (rows, rows) or targets.is_floating_point():
        return {}
    place = torch.arange(rows, device=targets.device)
    if int(targets.min()) < 0 or int(targets.max()) >= rows:
        return {}
    if not bool((targets[targets] == place).all()) or bool((targets == place).any()):
        return {}
    values = scores.detach().float()
    found = {"pairs_same": 1.0} if _are_same(values, targets) else {}
    for name, other in {
        "pairs_wanted": targets,
        "pairs_in_halves": (place + rows // 2) % rows,
        "pairs_side_by_side": place ^ 1,
    }.items():
        theirs = values.gather(1, other[:, None])
        # two encoders may keep the halves apart: only what lies in the same one is compared
        half = place[None, :] * 2 // rows == other[:, None] * 2 // rows
        rivals = half & (place[None, :] != place[:, None]) & (place[None, :] != other[:, None])
        farther = (values < theirs).float() + (values == theirs).float() / 2
        found[name] = float((farther * rivals).sum(1).div(rivals.sum(1)).mean())
    return found
