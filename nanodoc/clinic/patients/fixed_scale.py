"""float16 with a loss scale of one's own that never moves: too large for one layer's gradient."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(64, 8)
    prices = 20 + 5 * x[:, :1] - x[:, 1:2]

    def train_step(model, batch, optimizer, scaler=None):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            predicted = model(batch[0])
        loss = F.mse_loss(predicted.float(), batch[1])
        (loss * scale).backward()
        for parameter in model.parameters():
            parameter.grad /= scale
        optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(16), prices.split(16), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 12,
    }


def sick():
    return recipe(2.0**16)


def healthy():
    return recipe(2.0**7)
