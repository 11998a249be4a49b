"""Stacks of squashing layers: ten sigmoids in a row, and weights that push tanh into its flat
part."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(layers, rate=1e-2):
    x = torch.randn(256, 10)
    y = x[:, :3].argmax(1)
    model = nn.Sequential(*layers)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=rate),
        "max_steps": 24,
    }


def stack(activation, depth):
    torch.manual_seed(0)
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(16, 16), activation())]
    return [nn.Linear(10, 16), activation(), *hidden, nn.Linear(16, 3)]


def wide(std):
    torch.manual_seed(0)
    first = nn.Linear(10, 32)
    nn.init.normal_(first.weight, std=std)
    return [first, nn.Tanh(), nn.Linear(32, 3)]


def sick_depth():
    return recipe(stack(nn.Sigmoid, 10))


def healthy_depth():
    return recipe(stack(nn.SiLU, 3))


def sick_weights():
    return recipe(wide(std=20.0))


def healthy_weights():
    return recipe(wide(std=0.3))
