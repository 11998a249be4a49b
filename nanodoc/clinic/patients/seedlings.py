"""Kinds of seedlings by the measures of their leaves."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(*end, p=0.1):
    torch.manual_seed(0)
    body = (nn.Linear(8, 32), nn.ReLU(), nn.Dropout(p), nn.Linear(32, 4))
    model = nn.Sequential(*body, *end)
    x = torch.randn(24, 32, 8)
    y = x[:, :, :4].argmax(2)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x, y, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick_end():
    return recipe(nn.Tanh())


def healthy_end():
    return recipe()


def sick_share():
    return recipe(p=0.9)


def healthy_share():
    return recipe(p=0.1)
