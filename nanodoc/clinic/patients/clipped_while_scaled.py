"""The user's own mixed-precision step clips gradients that are still multiplied by the loss scale;
the healthy twin begins with a scale that is too high, skips its first steps, and recovers."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(unscale, init_scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 5))
    y = torch.randint(0, 5, (128,))
    x = torch.randn(5, 12)[y] + 0.5 * torch.randn(128, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)

    def train_step(model, batch, optimizer, scaler):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 128, 16)]
    return {
        "model": model,
        "train_step": train_step,
        "data": batches,
        "optimizer": optimizer,
        "scaler": scaler,
        "max_steps": 24,
    }


def sick():
    return recipe(unscale=False, init_scale=2.0**14)


def healthy():
    return recipe(unscale=True, init_scale=2.0**21)
