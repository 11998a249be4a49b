"""Books that readers want, beside books they do not want: several of these for each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Shelf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.readers, self.books = nn.Embedding(30, 8), nn.Embedding(40, 8)

    def forward(self, reader: torch.Tensor, book: torch.Tensor) -> Any:
        return (self.readers(reader) * self.books(book)).sum(-1)


def _recipe(alike: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    readers = torch.randint(30, (320,))
    wanted = (readers + torch.randint(4, (320,))) % 40
    others = torch.randint(40, (320, 5))
    model = Shelf()

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        reader, book, other = batch
        reader = reader.repeat_interleave(5)
        book = book.repeat_interleave(5) if alike else book.repeat(5)
        return -F.logsigmoid(model(reader, book) - model(reader, other.flatten())).mean()

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(readers, wanted, others), batch_size=16, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    return _recipe(alike=False)


def healthy() -> dict[str, Any]:
    return _recipe(alike=True)
