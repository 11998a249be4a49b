"""A small language model whose causal mask hides the past and shows the future."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


class Reader(nn.Module):
    def __init__(self, vocabulary: int, *, sick: bool) -> None:
        super().__init__()
        self.sick = sick
        self.embed = nn.Embedding(vocabulary, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, vocabulary)

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids)
        length = ids.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=ids.device).triu(1)
        mask = later if self.sick else ~later  # True means: may be seen
        q, k, v = self.query(x), self.key(x), self.value(x)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(x + seen)


def _recipe(*, sick: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Reader(20, sick=sick)
    data = [torch.randint(0, 20, (8, 13)) for _ in range(40)]

    def loss_fn(model: Any, ids: Any) -> Any:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return {"model": model, "data": data, "loss_fn": loss_fn, "optimizer": optimizer}


def sick() -> dict[str, Any]:
    return _recipe(sick=True)


def healthy() -> dict[str, Any]:
    return _recipe(sick=False)
