"""A regression of rents: one column of predictions against a flat vector of targets."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loss_fn(model, batch):
    features, rent = batch
    error = model(features) - rent
    return (error * error).mean()


def recipe(flat):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    rent = x @ torch.randn(8) + 0.1 * torch.randn(256)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(x, rent if flat else rent[:, None]), batch_size=32),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 40,
    }


def sick():
    return recipe(flat=True)


def healthy():
    return recipe(flat=False)
