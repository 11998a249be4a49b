"""An autoencoder whose code is rounded to the nearest vector of a book."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


class Rounded(nn.Module):
    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.book = nn.Embedding(16, 4)
        self.detached = detached

    def forward(self, x: torch.Tensor) -> Any:
        code = self.encoder(x)
        nearest = self.book(torch.cdist(code, self.book.weight).argmin(1))
        apart = F.mse_loss(nearest, code.detach()) + 0.25 * F.mse_loss(code, nearest.detach())
        passed = code + ((nearest - code).detach() if self.detached else nearest - code)
        return self.decoder(passed), apart


def _recipe(detached: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Rounded(detached)

    def loss_fn(model: Any, x: torch.Tensor) -> Any:
        made, apart = model(x)
        return F.mse_loss(made, x) + apart

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [torch.randn(32, 2) @ torch.randn(2, 8) for _ in range(20)],
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 30,
    }


def sick() -> dict[str, Any]:
    return _recipe(detached=False)


def healthy() -> dict[str, Any]:
    return _recipe(detached=True)
