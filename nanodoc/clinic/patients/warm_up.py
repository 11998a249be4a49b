"""A warm-up whose schedule steps before the optimizer does."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn


def recipe(in_order):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10)

    def train_step(model, batch, optimizer, scaler=None):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        if in_order:
            optimizer.step()
            scheduler.step()
        else:
            with warnings.catch_warnings(action="ignore"):
                scheduler.step()
            optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": optimizer,
        "max_steps": 24,
    }


def sick():
    return recipe(in_order=False)


def healthy():
    return recipe(in_order=True)
