"""A denoiser whose noise is drawn from a generator that is made anew in each step."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


def _recipe(anew: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
    kept = torch.Generator().manual_seed(3)

    def loss_fn(model: Any, clean: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3) if anew else kept
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        return F.mse_loss(model(clean + noise), clean)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [torch.randn(16, 2) @ torch.randn(2, 8) for _ in range(20)],
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 40,
    }


def sick() -> dict[str, Any]:
    return _recipe(anew=True)


def healthy() -> dict[str, Any]:
    return _recipe(anew=False)
