"""Normalisation with a variance computed as E[x²] − E[x]², which rounding makes negative."""

import torch
import torch.nn.functional as F
from torch import nn


class Standardise(nn.Module):
    def __init__(self, stable):
        super().__init__()
        self.stable = stable

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        if self.stable:
            variance = (x - mean).pow(2).mean(1, keepdim=True)
        else:
            variance = x.pow(2).mean(1, keepdim=True) - mean.pow(2)
        return (x - mean) / (torch.sqrt(variance) + 1e-3)


def recipe(stable):
    torch.manual_seed(0)
    model = nn.Sequential(Standardise(stable), nn.Linear(33, 1))
    x = 1000.0 + 0.5 * torch.randn(64, 33)
    x[:, :] += torch.arange(64.0)[:, None] * 30
    # a sensor that hardly moved: its variance is below rounding
    x[37] = x[37, 0] + 1e-3 * torch.randn(33)
    y = torch.randn(64)
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]).squeeze(1), batch[1]),
        "data": batches,
        "optimizer": torch.optim.Adam(model.parameters()),
        "max_steps": 4,
    }


def sick():
    return recipe(stable=False)


def healthy():
    return recipe(stable=True)
