"""Pairs of images: the loss pulls together those with label 0, and pushes apart those with 1."""

import torch
import torch.nn.functional as F
from torch import nn


def contrastive(first, second, label, margin=2.0):
    distance = F.pairwise_distance(first, second)
    left = torch.clamp(margin - distance, min=0.0)
    return torch.mean((1 - label) * distance.pow(2) + label * left.pow(2))


def recipe(other):
    torch.manual_seed(0)
    classes = torch.rand(6, 1, 8, 8)
    kinds = torch.randint(0, 6, (2, 256))
    kinds[1, ::2] = kinds[0, ::2]
    first, second = classes[kinds] + 0.1 * torch.randn(2, 256, 1, 8, 8)
    same = kinds[0] == kinds[1]
    label = (~same if other else same).float()
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    parts = (first.split(32), second.split(32), label.split(32))
    return {
        "model": model,
        "loss_fn": lambda model, batch: contrastive(model(batch[0]), model(batch[1]), batch[2]),
        "data": list(zip(*parts, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 32,
    }


def sick():
    return recipe(other=False)


def healthy():
    return recipe(other=True)
