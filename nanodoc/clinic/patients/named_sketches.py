"""Sketches and their names, brought together by a scale that is learnt as its logarithm."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


class Matcher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sketch, self.name = nn.Linear(24, 8), nn.Embedding(64, 8)
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, sketches: torch.Tensor, names: torch.Tensor) -> Any:
        drawn = F.normalize(self.sketch(sketches), dim=1)
        return drawn, F.normalize(self.name(names), dim=1), self.log_scale.exp()


def _recipe(again: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes = torch.randn(64, 24)
    model = Matcher()

    def draw() -> Any:
        names = torch.randperm(64)[:16]
        return shapes[names] + 0.3 * torch.randn(16, 24), names

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        drawn, named, scale = model(*batch)
        if again:
            scale = scale.exp()
        return F.cross_entropy(scale * drawn @ named.T, torch.arange(16, device=drawn.device))

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [draw() for _ in range(16)],
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 16,
    }


def sick() -> dict[str, Any]:
    return _recipe(again=True)


def healthy() -> dict[str, Any]:
    return _recipe(again=False)
