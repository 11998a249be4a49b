"""A hand-written binary cross entropy with an epsilon that float32 can't hold next to one."""

import torch
from torch import nn


def recipe(eps):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, y = torch.randn(64, 3), (torch.rand(64) > 0.5).float()
    x[52] *= 60.0
    with torch.no_grad():
        model.weight.copy_(4.0 * torch.sign(x[52])[None])

    def loss_fn(model, batch):
        x, y = batch
        p = torch.sigmoid(model(x).squeeze(1)).clamp(eps, 1 - eps)
        return -(y * p.log() + (1 - y) * torch.log(1 - p)).mean()

    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "max_steps": 4,
    }


def sick():
    return recipe(eps=1e-9)


def healthy():
    return recipe(eps=1e-6)
