"""A compander that guards its square root with where(), which guards the value and not the
gradient."""

import torch
import torch.nn.functional as F
from torch import nn


def compand(x, inside):
    if inside:
        x = torch.where(x > 0, x, torch.ones_like(x))
        return torch.sqrt(x)
    return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))


def recipe(inside):
    torch.manual_seed(0)
    model = nn.Linear(5, 20)
    x, y = torch.randn(40, 5), torch.rand(40, 20)

    def loss_fn(model, batch):
        return F.mse_loss(compand(model(batch[0]), inside), batch[1])

    batches = [(x[i : i + 10], y[i : i + 10]) for i in range(0, 40, 10)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 4,
    }


def sick():
    return recipe(inside=False)


def healthy():
    return recipe(inside=True)
