"""A regression of sensor readings: one batch in another unit, a loss that is summed, batch norm
without momentum, and a mean over the batch in place of the features."""

import torch
import torch.nn.functional as F
from torch import nn


class Mean(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return x.mean(self.dim, keepdim=True).expand_as(x)


def recipe(model, units=1.0, spread=1.0, reduction="mean", rate=1e-2, steps=48):
    x = torch.randn(steps, 32, 8)
    y = x[:, :, :1] - 0.5 * x[:, :, 1:2] + 0.3 * torch.randn(steps, 32, 1)
    y[24] *= units
    y *= spread
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1], reduction=reduction),
        "data": list(zip(x, y, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=rate),
        "max_steps": steps,
    }


def net(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 24), *between, nn.ReLU(), nn.Linear(24, 1))


def sick_units():
    return recipe(net(), units=20.0)


def healthy_units():
    return recipe(net())


def sick_sum():
    return recipe(net(), spread=10.0, reduction="sum")


def healthy_sum():
    return recipe(net(), spread=10.0)


def sick_momentum():
    return recipe(net(nn.BatchNorm1d(24, momentum=0.0)))


def healthy_momentum():
    return recipe(net(nn.BatchNorm1d(24)))


def sick_memory():
    return recipe(net(nn.BatchNorm1d(24, momentum=0.99)))


def healthy_memory():
    return recipe(net(nn.BatchNorm1d(24, momentum=0.01)))


def sick_mean():
    return recipe(net(Mean(0)))


def healthy_mean():
    return recipe(net(Mean(1)))
