"""A loop with a GradScaler whose optimizer steps by itself, on gradients that are still scaled."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(through):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3))
    x = torch.randn(48, 6)
    y = x[:, :3].argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(model, batch, optimizer, scaler):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        if through:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(8), y.split(8), strict=True)),
        "optimizer": optimizer,
        "scaler": torch.amp.GradScaler("cpu", init_scale=1024.0),
        "max_steps": 12,
    }


def sick():
    return recipe(through=False)


def healthy():
    return recipe(through=True)
