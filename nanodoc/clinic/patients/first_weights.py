"""A classifier and how its weights begin: a constant, a head a hundred times too large, biases that
keep every ReLU shut, weights of one sign."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(prepare=None, rate=1e-2):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
    if prepare is not None:
        with torch.no_grad():
            prepare(model)
    x = torch.randn(256, 10)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=rate),
        "max_steps": 32,
    }


def constant(model):
    for layer in (model[0], model[2]):
        nn.init.constant_(layer.weight, 0.05)
        nn.init.zeros_(layer.bias)


def large_head(model):
    nn.init.normal_(model[2].weight, std=30.0)


def small_head(model):
    nn.init.normal_(model[2].weight, std=0.1)


def shut(model):
    nn.init.constant_(model[0].bias, -2.0)
    model[0].bias[:12] = -20.0


def ajar(model):
    nn.init.constant_(model[0].bias, 0.1)


def one_sided(model):
    for parameter in model.parameters():
        nn.init.uniform_(parameter)


def two_sided(model):
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.3, 0.3)


def sick_constant():
    return recipe(constant)


def healthy_constant():
    return recipe()


def sick_head():
    return recipe(large_head, rate=1e-5)


def healthy_head():
    return recipe(small_head)


def sick_relu():
    return recipe(shut)


def healthy_relu():
    return recipe(ajar)


def sick_sides():
    return recipe(one_sided)


def healthy_sides():
    return recipe(two_sided)
