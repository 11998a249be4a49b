"""Whitening with an eigendecomposition of a covariance that starts as a multiple of the
identity."""

import torch
from torch import nn


class Whiten(nn.Module):
    def __init__(self, width, jitter):
        super().__init__()
        self.factor = nn.Parameter(
            torch.eye(width) + jitter * torch.diag(torch.arange(width, dtype=torch.float32))
        )

    def forward(self, x):
        values, vectors = torch.linalg.eigh(self.factor @ self.factor.T)
        return x @ vectors @ torch.diag(values.rsqrt()) * vectors.sum(0)


def recipe(jitter):
    torch.manual_seed(0)
    model = nn.Sequential(Whiten(4, jitter), nn.Linear(4, 1))
    x, y = torch.randn(32, 4), torch.randn(32, 1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: (model(batch[0]) - batch[1]).pow(2).mean(),
        "data": [(x, y)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 3,
    }


def sick():
    return recipe(jitter=0.0)


def healthy():
    return recipe(jitter=0.3)
