"""A siamese network without negatives: a predictor has to tell one view's code from the other's."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.predictor = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> Any:
        code = self.encoder(x)
        return code, self.predictor(code)


def _recipe(detached: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Siamese()

    def loss_fn(model: Any, batch: Any) -> Any:
        (code, told), (other_code, other) = model(batch[0]), model(batch[1])
        if detached:
            code, other_code = code.detach(), other_code.detach()
        first = F.cosine_similarity(told, other_code).mean()
        second = F.cosine_similarity(other, code).mean()
        return -(first + second) / 2

    scenes = torch.randn(20, 32, 16)
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)) for x in scenes],
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 30,
    }


def sick() -> dict[str, Any]:
    return _recipe(detached=False)


def healthy() -> dict[str, Any]:
    return _recipe(detached=True)
