"""float16 without a loss scale: the errors of a regression to small targets are below what float16
can hold on their way back."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(scaled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 32))
    with torch.no_grad():
        model[2].weight.mul_(1e-3)
        model[2].bias.zero_()
    x = torch.randn(256, 16)
    y = 1e-3 * torch.randn(16, 32).T.matmul(x.T).T
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)

    def train_step(model, batch, optimizer, scaler):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 256, 64)]
    return {
        "model": model,
        "train_step": train_step,
        "data": batches,
        "optimizer": optimizer,
        "scaler": scaler,
        "max_steps": 12,
    }


def sick():
    return recipe(scaled=False)


def healthy():
    return recipe(scaled=True)
