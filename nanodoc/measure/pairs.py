"""What the scores of a contrastive loss say of the pairs that it wants."""

from __future__ import annotations

import torch

_FEWEST = 16  # rows: of fewer, nothing can be said


def nearness_of_pairs(scores: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """The share of the other rows that are farther from a row of `scores` (n, n) than the one that
    `targets` (n,) names, the mean over all rows: 0.5 for strangers, 1 for the nearest. And the same
    of the other view of its sample, where views lie in two halves, or side by side. Nothing for
    targets that do not pair all rows."""
    rows = len(targets) if targets.dim() == 1 else 0
    if rows < _FEWEST or rows % 2 or scores.shape != (rows, rows) or targets.is_floating_point():
        return {}
    place = torch.arange(rows, device=targets.device)
    if int(targets.min()) < 0 or int(targets.max()) >= rows:
        return {}
    if not bool((targets[targets] == place).all()) or bool((targets == place).any()):
        return {}
    own = torch.eye(rows, dtype=torch.bool, device=scores.device)
    values = scores.detach().float().masked_fill(own, torch.inf)
    pairs = {
        "pairs_wanted": targets,
        "pairs_in_halves": (place + rows // 2) % rows,
        "pairs_side_by_side": place ^ 1,
    }
    found = {}
    for name, other in pairs.items():
        theirs = values.gather(1, other[:, None])
        farther = (values < theirs).sum(1) + ((values == theirs).sum(1) - 1) / 2
        found[name] = float(farther.float().mean()) / (rows - 2)
    return found
