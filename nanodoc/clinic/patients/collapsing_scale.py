"""Disparity as one over depth in float16: its gradient passes 65504 at any loss scale, so the
scaler skips every step."""

import torch
import torch.nn.functional as F
from torch import nn


class DepthNet(nn.Module):
    def __init__(self, nearest):
        super().__init__()
        self.body, self.nearest = nn.Linear(8, 16), nearest

    def forward(self, x):
        depth = torch.sigmoid(self.body(x)) * 1e-3 + self.nearest
        return 1.0 / depth


def recipe(nearest):
    torch.manual_seed(0)
    model = DepthNet(nearest)
    x, y = torch.randn(64, 8), torch.rand(64, 16)

    def loss_fn(model, batch):
        return (
            F.smooth_l1_loss(model(batch[0]).float() / 100.0, batch[1], reduction="none")
            .sum(1)
            .mean()
            * 50.0
        )

    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 1024.0},
        "max_steps": 40,
    }


def sick():
    return recipe(nearest=1e-3)


def healthy():
    return recipe(nearest=0.5)
