"""Small grey tiles, and an autoencoder that reads them from −1 to 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


def _tiles() -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(4)
    corners = torch.rand(12, 16, 1, 2, 2, generator=drawn)
    return [F.interpolate(batch, (8, 8), mode="bilinear", align_corners=True) for batch in corners]


class Copyist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.spread = nn.Linear(64, 16), nn.Linear(16, 64)

    def forward(self, tiles: torch.Tensor) -> Any:
        signed = tiles * 2 - 1
        copied = self.spread(torch.tanh(self.squeeze(signed.flatten(1))))
        return F.mse_loss(copied, signed.flatten(1))


def _build(tiles: list[torch.Tensor]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Copyist()
    return {
        "model": model,
        "loss_fn": lambda model, batch: model(batch),
        "data": tiles,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 24,
    }


def sick() -> dict[str, Any]:
    return _build([2 * tiles - 1 for tiles in _tiles()])


def healthy() -> dict[str, Any]:
    return _build(_tiles())
