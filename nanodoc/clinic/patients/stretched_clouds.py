"""A flow that turns two clouds of points into one round cloud, layer by layer."""

import torch
from torch import nn


class Stretch(nn.Module):
    """Stretches and moves one half of the numbers by what the other half says."""

    def __init__(self, turned):
        super().__init__()
        self.turned = turned
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, points):
        kept, changed = (points.flip(1) if self.turned else points).chunk(2, dim=1)
        by, shift = self.net(kept).chunk(2, dim=1)
        by = torch.tanh(by)
        points = torch.cat([kept, changed * by.exp() + shift], dim=1)
        return points.flip(1) if self.turned else points, by.sum(dim=1)


def recipe(joined):
    torch.manual_seed(0)
    clouds = torch.randn(1280, 2) * 0.3 + torch.randint(0, 2, (1280, 1)) * 2.0 - 1.0
    model = nn.ModuleList(Stretch(number % 2) for number in range(4))

    def loss_fn(model, batch):
        points, stretched = batch, 0.0
        for layer in model:
            points, by = layer(points)
            stretched = joined(stretched, by)
        return (0.5 * points.square().sum(dim=1) - stretched).mean()

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(clouds.split(32)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 40,
    }


def sick():
    return recipe(lambda before, by: by)


def healthy():
    return recipe(lambda before, by: before + by)
