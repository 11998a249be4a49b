"""Tunes whose next notes are flattened by time, and the outputs by tune."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(by_tune):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 12))
    tunes = (torch.arange(15) + torch.randint(0, 12, (24, 8, 1))) % 12

    def loss_fn(model, tune):
        scores = model(tune[:, :-1]).flatten(0, 1)
        following = tune[:, 1:] if by_tune else tune[:, 1:].t()
        return F.cross_entropy(scores, following.flatten())

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(tunes),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe(by_tune=False)


def healthy():
    return recipe(by_tune=True)
