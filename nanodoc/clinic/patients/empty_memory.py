"""A layer whose scale was allocated and never filled."""

import torch
import torch.nn.functional as F
from torch import nn


class Scale(nn.Module):
    def __init__(self, width, filled):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        if filled:
            nn.init.ones_(self.gain)

    def forward(self, x):
        return x * self.gain


def recipe(filled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4096), Scale(4096, filled), nn.Linear(4096, 2))
    x, y = torch.randn(32, 6), torch.randint(0, 2, (32,))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": [(x, y)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 3,
    }


def sick():
    return recipe(filled=False)


def healthy():
    return recipe(filled=True)
