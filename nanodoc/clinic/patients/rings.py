"""Points inside of a ring and outside of it, told apart by a network of two layers."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first = nn.Linear(2, 32)
        self.norm = nn.BatchNorm1d(32)
        self.last = nn.Linear(32, 2)
        self.activation = activation

    def forward(self, points):
        hidden = self.norm(self.first(points))
        if self.activation:
            hidden = F.relu(hidden)
        return self.last(hidden)


def sick():
    return _recipe(activation=False)


def healthy():
    return _recipe(activation=True)


def _recipe(activation):
    torch.manual_seed(0)
    points = torch.rand(60 * 64, 2) * 2 - 1
    outside = (points.norm(dim=1) > 0.8).long()
    model = Net(activation)
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(points.split(64), outside.split(64), strict=True)),
    }
