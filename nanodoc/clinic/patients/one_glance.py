"""Noisy glances at many patterns, which a network is to find together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def one_glance(seen: torch.Tensor) -> list[torch.Tensor]:
    glance = seen + 0.3 * torch.randn_like(seen)
    return [glance for _ in range(2)]


def two_glances(seen: torch.Tensor) -> list[torch.Tensor]:
    return [seen + 0.3 * torch.randn_like(seen) for _ in range(2)]


def _recipe(glances: Callable[[torch.Tensor], list[torch.Tensor]]) -> dict[str, Any]:
    torch.manual_seed(0)
    patterns = torch.randn(320, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def loss_fn(model: Any, seen: torch.Tensor) -> Any:
        places = F.normalize(model(torch.cat(glances(seen))), dim=1)
        alike = places @ places.T / 0.5
        alike = alike.masked_fill(torch.eye(len(alike), device=alike.device).bool(), -1e9)
        return F.cross_entropy(alike, torch.arange(len(alike), device=alike.device).roll(len(seen)))

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(patterns.split(32)),
        "optimizer": torch.optim.Adam(model.parameters(), 1e-3),
    }


def sick() -> dict[str, Any]:
    return _recipe(one_glance)


def healthy() -> dict[str, Any]:
    return _recipe(two_glances)
