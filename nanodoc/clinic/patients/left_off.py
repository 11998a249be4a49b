"""An evaluation before the training that switches gradients off and never on again."""

import torch
import torch.nn.functional as F
from torch import nn


def baseline(model, x, y):
    torch.set_grad_enabled(False)
    return F.mse_loss(model(x), y).item()


def baseline_in_a_block(model, x, y):
    with torch.no_grad():
        return F.mse_loss(model(x), y).item()


def recipe(evaluate):
    torch.manual_seed(0)
    x = torch.randn(64, 6)
    y = x[:, :1] - x[:, 1:2]
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    evaluate(model, x, y)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(16), y.split(16), strict=True)),
        "optimizer": optimizer,
        "max_steps": 12,
    }


def sick():
    return recipe(baseline)


def healthy():
    return recipe(baseline_in_a_block)
