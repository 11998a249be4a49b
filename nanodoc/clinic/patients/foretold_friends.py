"""Who will be friends with whom, told from the friendships that there are."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F

_PEOPLE = 60


class Circle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.people = nn.Embedding(_PEOPLE, 16)
        self.mixed = nn.Linear(16, 16)

    def forward(self, edges: torch.Tensor, pairs: torch.Tensor) -> Any:
        known = self.mixed(self.people.weight)
        told = torch.zeros_like(known).index_add(0, edges[1], known[edges[0]])
        seen = known + 0.1 * told
        return (seen[pairs[0]] * seen[pairs[1]]).sum(-1)


def _recipe(friends_first: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    close = (torch.arange(_PEOPLE)[:, None] - torch.arange(_PEOPLE)).abs()
    edges = ((close > 0) & (close < 4)).nonzero().T.contiguous()
    model = Circle()

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        edges = batch["edges"]
        away = torch.randint_like(edges[0], 8, 50)
        strangers = torch.stack([edges[0], (edges[0] + away) % _PEOPLE])
        both = [edges, strangers] if friends_first else [strangers, edges]
        ones = torch.ones_like(edges[0], dtype=torch.float32)
        labels = torch.cat([ones, torch.zeros_like(ones)])
        return F.binary_cross_entropy_with_logits(model(edges, torch.cat(both, 1)), labels)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [{"edges": edges}] * 20,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    return _recipe(friends_first=False)


def healthy() -> dict[str, Any]:
    return _recipe(friends_first=True)
