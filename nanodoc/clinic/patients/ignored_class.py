"""Pictures of digits, whose loss is told to leave a label out."""

import torch
from torch import nn


def recipe(criterion):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    return {
        "model": model,
        "criterion": criterion,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 32,
    }


def sick():
    return recipe(nn.CrossEntropyLoss(ignore_index=0))


def healthy():
    return recipe(nn.CrossEntropyLoss())
