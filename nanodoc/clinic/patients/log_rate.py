"""Count regression: the logarithm of a rate that ReLU can make exactly zero."""

import torch
from torch import nn


def recipe(floor):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
    nn.init.constant_(model[2].bias, 2.0)
    x = torch.randn(80, 6)
    counts = torch.poisson(torch.full((80,), 3.0))
    x[57] = 30.0

    def loss_fn(model, batch):
        x, counts = batch
        rate = torch.relu(model(x).squeeze(1)) + floor
        return (rate - counts * torch.log(rate)).mean()

    torch.nn.init.uniform_(model[2].weight, -0.2, 0.0)
    batches = [(x[i : i + 20], counts[i : i + 20]) for i in range(0, 80, 20)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 4,
    }


def sick():
    return recipe(floor=0.0)


def healthy():
    return recipe(floor=1e-6)
