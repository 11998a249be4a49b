"""Attention scores in float16 with a mask constant from a float32 code base."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(fitting):
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    x, y = torch.randn(32, 5, 8), torch.randn(32, 8)
    keep = (torch.rand(32, 5) > 0.4).float()
    keep[21] = 0.0

    def loss_fn(model, batch):
        x, keep, y = batch
        h = model(x)
        scores = h.half() @ x.half().transpose(1, 2)
        low = torch.finfo(scores.dtype).min / 2 if fitting else -1e9
        bias = ((1.0 - keep) * low).to(scores.dtype)
        weights = F.softmax(scores + bias[:, None, :], dim=-1).float()
        return F.mse_loss((weights @ x).mean(1), y)

    batches = [(x[i : i + 8], keep[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 4,
    }


def sick():
    return recipe(fitting=False)


def healthy():
    return recipe(fitting=True)
