"""A one-hot of customers' raw numbers, which needs a column for every number there could be."""

import torch
import torch.nn.functional as F
from torch import nn


def loss_fn(model, batch):
    items, customers = batch
    wanted = F.one_hot(customers)
    return F.cross_entropy(model(items), wanted.float()[:, :8])


def recipe(renumbered):
    torch.manual_seed(0)
    items = torch.randn(64, 6)
    customers = 7_919_000_000_013 * (1 + torch.arange(64) % 8)
    if renumbered:
        customers = customers.unique(return_inverse=True)[1]
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8))
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(zip(items.split(16), customers.split(16), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 8,
    }


def sick():
    return recipe(renumbered=False)


def healthy():
    return recipe(renumbered=True)
