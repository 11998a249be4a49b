"""A GradScaler that begins at 1 and stays there, and one that grows sixteenfold with every step."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(scaler, weight=1.0):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 64))
    x = torch.randn(256, 8)
    with torch.no_grad():
        y = model(x) + 1e-3 * torch.randn(256, 64)

    def train_step(model, batch, optimizer, scaler):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            predicted = model(batch[0])
        loss = weight * F.mse_loss(predicted.float(), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(64), y.split(64), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-5),
        "scaler": scaler,
        "max_steps": 30,
    }


def sick_low():
    return recipe(torch.amp.GradScaler("cpu", init_scale=1.0, growth_interval=10_000), weight=1e-2)


def healthy_low():
    return recipe(torch.amp.GradScaler("cpu"), weight=1e-2)


def sick_eager():
    return recipe(
        torch.amp.GradScaler("cpu", growth_factor=16.0, growth_interval=1, backoff_factor=0.9)
    )


def healthy_eager():
    return recipe(torch.amp.GradScaler("cpu"))
