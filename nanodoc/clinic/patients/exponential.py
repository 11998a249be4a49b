"""Learned variance as exp(s), with an input scale that makes s large."""

import torch
from torch import nn


def recipe(bounded):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    x, y = torch.randn(60, 4), torch.randn(60)
    x[44] *= 300.0

    def loss_fn(model, batch):
        mean, spread = model(batch[0]).unbind(1)
        if bounded:
            spread = 10 * torch.tanh(spread / 10)
        precision = torch.exp(spread.abs())
        return (precision * (mean - batch[1]).pow(2) - spread).mean()

    batches = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 60, 20)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-5),
        "max_steps": 3,
    }


def sick():
    return recipe(bounded=False)


def healthy():
    return recipe(bounded=True)
