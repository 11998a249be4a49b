"""A regression of 80 steps, with a warm-up that is given in steps."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def with_warmup(optimizer, warmup_steps):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup_steps))


def recipe(warmup_steps):
    torch.manual_seed(0)
    x = torch.randn(320, 12)
    y = torch.sin(x[:, :3].sum(1, keepdim=True)) + 0.1 * torch.randn(320, 1)
    model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": optimizer,
        "scheduler": with_warmup(optimizer, warmup_steps),
        "scheduler_interval": "step",
        "max_steps": 80,
    }


def sick():
    return recipe(warmup_steps=4000)


def healthy():
    return recipe(warmup_steps=10)
