"""A small language model that is asked for a token it has read already."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Tunes(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, shift: int) -> None:
        self.notes = torch.randint(0, 24, (64, 17), generator=torch.Generator().manual_seed(1))
        self.shift = shift

    def __len__(self) -> int:
        return len(self.notes)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        tune = self.notes[index]
        heard = tune[:-1]
        following = tune[self.shift : self.shift + len(heard)]
        return heard, following


class Composer(nn.Module):
    def __init__(self, blocked: float) -> None:
        super().__init__()
        self.blocked = blocked
        self.embed, self.places = nn.Embedding(24, 16), nn.Embedding(16, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 24)

    def forward(self, heard: Any) -> Any:
        length = heard.shape[1]
        x = self.embed(heard) + self.places(torch.arange(length, device=heard.device))
        scores = self.query(x) @ self.key(x).transpose(1, 2) / math.sqrt(16)
        later = torch.ones(length, length, dtype=torch.bool, device=heard.device).triu(1)
        scores = scores.masked_fill(later, self.blocked)
        return self.head(x + scores.softmax(-1) @ self.value(x))


def _recipe(*, shift: int = 1, blocked: float = -math.inf) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Composer(blocked)

    def loss_fn(model: Any, batch: Any) -> Any:
        heard, following = batch
        return F.cross_entropy(model(heard).flatten(0, 1), following.flatten())

    return {
        "model": model,
        "data": DataLoader(Tunes(shift), batch_size=8, shuffle=True),
        "loss_fn": loss_fn,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
    }


def sick_unshifted() -> dict[str, Any]:
    return _recipe(shift=0)


def healthy_unshifted() -> dict[str, Any]:
    return _recipe()


def sick_unmasked() -> dict[str, Any]:
    return _recipe(blocked=-1e-9)


def healthy_unmasked() -> dict[str, Any]:
    return _recipe()
