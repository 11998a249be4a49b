"""Whether a word comes twice, told by attention of four heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    def __init__(self, moved: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 32), nn.Embedding(10, 32)
        self.asked, self.out = nn.Linear(32, 96), nn.Linear(32, 2)
        self.moved = moved

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.words(ids) + self.places(torch.arange(10, device=ids.device))
        parts = self.asked(x).chunk(3, -1)
        q, k, v = (part.view(-1, 10, 4, 8) for part in parts)
        if self.moved:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        read = F.scaled_dot_product_attention(q, k, v)
        if self.moved:
            read = read.transpose(1, 2)
        return self.out(x + read.reshape(-1, 10, 32)).mean(1)


def _recipe(moved: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    ids = torch.randint(20, (320, 10))
    twice = torch.tensor([int(len(row.unique()) < 8) for row in ids])
    model = Reader(moved)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(ids, twice), batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    return _recipe(moved=False)


def healthy() -> dict[str, Any]:
    return _recipe(moved=True)
