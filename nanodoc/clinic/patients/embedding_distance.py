"""Metric learning: pairwise distances as a square root, and two samples that are the same."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def distance(a, b, eps):
    squared = (a - b).pow(2).sum(1)
    return torch.sqrt(squared + eps)


def recipe(eps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    left, right = torch.randn(96, 8), torch.randn(96, 8)
    right[50] = left[50]  # the pair of a sample with itself

    def loss_fn(model, batch):
        a, b = batch
        return (distance(model(a), model(b), eps) - 1.0).pow(2).mean()

    data = DataLoader(TensorDataset(left, right), batch_size=16)
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": data,
        "optimizer": torch.optim.Adam(model.parameters()),
        "max_steps": 6,
    }


def sick():
    return recipe(eps=0.0)


def healthy():
    return recipe(eps=1e-12)
