"""Flowers that were filed kind by kind, shuffled before they are learnt."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def _filed() -> tuple[torch.Tensor, torch.Tensor]:
    kinds = torch.arange(3).repeat_interleave(80)
    return kinds[:, None] + 0.3 * torch.randn(240, 4), kinds


def _of_some(flowers: torch.Tensor, kinds: torch.Tensor) -> TensorDataset:
    order = torch.randperm(len(flowers))
    flowers = flowers[order]  # and their kinds?
    return TensorDataset(flowers, kinds)


def _of_both(flowers: torch.Tensor, kinds: torch.Tensor) -> TensorDataset:
    order = torch.randperm(len(flowers))
    flowers, kinds = flowers[order], kinds[order]
    return TensorDataset(flowers, kinds)


def _recipe(data: TensorDataset) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        flower, kind = batch
        return F.cross_entropy(model(flower), kind)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(data, batch_size=24),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    torch.manual_seed(0)
    return _recipe(_of_some(*_filed()))


def healthy() -> dict[str, Any]:
    torch.manual_seed(0)
    return _recipe(_of_both(*_filed()))
