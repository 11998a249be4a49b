"""A discriminator whose probability is sharpened after its sigmoid, and leaves 0 to 1."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def _recipe(*, sharpen: float) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    data = [(x := torch.randn(16, 6) * 4, (x.sum(1, keepdim=True) > 0).float()) for _ in range(30)]

    def loss_fn(model: Any, batch: Any) -> Any:
        x, real = batch
        score = torch.sigmoid(model(x))
        sure = score * sharpen
        return F.binary_cross_entropy(sure, real)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {"model": model, "data": data, "loss_fn": loss_fn, "optimizer": optimizer}


def sick() -> dict[str, Any]:
    return _recipe(sharpen=1.6)


def healthy() -> dict[str, Any]:
    return _recipe(sharpen=1.0)
