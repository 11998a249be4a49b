"""A deep encoder whose layers are one object, repeated."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Deep(nn.Module):
    def __init__(self, copies):
        super().__init__()
        layer = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        if copies:
            self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(4)])
        else:
            self.layers = nn.ModuleList([layer] * 4)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def recipe(copies):
    torch.manual_seed(0)
    model = Deep(copies)
    x = torch.randn(64, 8)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick():
    return recipe(copies=False)


def healthy():
    return recipe(copies=True)
