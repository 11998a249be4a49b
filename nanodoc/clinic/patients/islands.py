"""Islands on a map, and a loss of overlap."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


def _maps() -> list[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(2)
    heights = torch.randn(10, 8, 1, 4, 4, generator=drawn)
    full = [F.interpolate(batch, (16, 16), mode="bilinear") for batch in heights]
    return [(height, (height > 0.3).float()) for height in full]


class Finder(nn.Module):
    def __init__(self, shares: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
        self.shares = shares

    def forward(self, height: torch.Tensor) -> Any:
        found = self.body(height)
        return found.sigmoid() if self.shares else found


def _overlap(model: Any, batch: Any) -> torch.Tensor:
    found, land = model(batch[0]).flatten(1), batch[1].flatten(1)
    both = (found * land).sum(1)
    loss: torch.Tensor = 1 - ((2 * both + 1) / (found.sum(1) + land.sum(1) + 1)).mean()
    return loss


def _recipe(shares: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Finder(shares)
    return {
        "model": model,
        "loss_fn": _overlap,
        "data": _maps(),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    return _recipe(shares=False)


def healthy() -> dict[str, Any]:
    return _recipe(shares=True)
