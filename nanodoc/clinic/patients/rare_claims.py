"""Claims of an insurance, few of them false, told by a classifier with class weights."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(power):
    torch.manual_seed(0)
    claims = torch.randn(400, 8)
    false = (claims[:, 0] + claims[:, 1] > 1.4).long()
    weights = torch.bincount(false).float() ** power
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    criterion = nn.CrossEntropyLoss(weight=weights / weights.mean())

    def loss_fn(model, batch):
        return criterion.to(batch[1].device)(model(batch[0]), batch[1])

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(claims, false), batch_size=40, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 20,
    }


def sick():
    return recipe(power=1)


def healthy():
    return recipe(power=-1)
