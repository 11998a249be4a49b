"""Scores masked with −inf for a ranking, then summed with a weight of zero at the masked places."""

import torch
from torch import nn


def recipe(late):
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    x, y = torch.randn(24, 5, 6), torch.randn(24)
    real = torch.ones(24, 5, dtype=torch.bool)
    real[18, 3:] = False

    def loss_fn(model, batch):
        x, real, y = batch
        scores = model(x).squeeze(-1)
        filler = 0.0 if late else float("-inf")
        scores = scores.masked_fill(~real, filler)
        total = (scores * real.float()).sum(1)
        return (total - y).pow(2).mean()

    batches = [(x[i : i + 6], real[i : i + 6], y[i : i + 6]) for i in range(0, 24, 6)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 4,
    }


def sick():
    return recipe(late=False)


def healthy():
    return recipe(late=True)
