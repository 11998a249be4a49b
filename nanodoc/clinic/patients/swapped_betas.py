"""A classifier under Adam, with betas of its own."""

import torch
from torch import nn


def recipe(betas):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    return {
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3, betas=betas),
        "max_steps": 32,
    }


def sick():
    return recipe((0.999, 0.9))


def healthy():
    return recipe((0.9, 0.999))
