"""A model kept wholly in float16 and trained by Adam with its default eps."""

import torch
from torch import nn


def recipe(half):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 1))
    x, y = torch.randn(64, 12), torch.randn(64)
    if half:
        model, x, y = model.half(), x.half(), y.half()

    def loss_fn(model, batch):
        return (model(batch[0]).squeeze(1) - batch[1]).pow(2).mean()

    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 8,
    }


def sick():
    return recipe(half=True)


def healthy():
    return recipe(half=False)
