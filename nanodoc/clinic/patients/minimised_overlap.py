"""Marks of bright places, learnt by their overlap."""

import torch
from torch import nn


def overlap(scores, mask):
    share = scores.sigmoid()
    both = (share * mask).sum((1, 2, 3))
    dice = (2 * both + 1) / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) + 1)
    return dice.mean()


def recipe(loss):
    torch.manual_seed(0)
    x = torch.rand(128, 1, 8, 8)
    mask = (x > 0.6).float()
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    return {
        "model": model,
        "loss_fn": lambda model, batch: loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(16), mask.split(16), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 32,
    }


def sick():
    return recipe(overlap)


def healthy():
    return recipe(lambda scores, mask: 1 - overlap(scores, mask))
