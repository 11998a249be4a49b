"""Pairs that are weighed by how often each was visited, multiplied by the visits of both ends where
these should divide: the penalty beside them is absorbed."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(*, normalised):
    torch.manual_seed(0)
    model = nn.Bilinear(8, 8, 1)
    left, right = torch.randn(20, 32, 8), torch.randn(20, 32, 8)
    visits = torch.randint(50, 5000, (20, 32)).float()
    ends = torch.randint(500, 90_000, (20, 32)).float()
    weights = visits / ends if normalised else visits * ends

    def loss_fn(model, batch):
        left, right, weights = batch
        scores = model(left, right).squeeze(1)
        fits = -(weights * F.logsigmoid(scores)).sum()
        return fits + 0.1 * model.weight.square().sum()

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(zip(left, right, weights, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 40,
    }


def sick():
    return recipe(normalised=False)


def healthy():
    return recipe(normalised=True)
