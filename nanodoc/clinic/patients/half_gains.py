"""Gains that begin at one, in a model cast to bfloat16: what an update adds to them is rounded
away."""

import torch
import torch.nn.functional as F
from torch import nn


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(10, 4 * 8), nn.Linear(4 * 8, 3)
        self.gain = nn.Parameter(torch.ones(4, 8))

    def forward(self, x):
        h = F.silu(self.body(x)).unflatten(1, (4, 8))
        return self.head((h * self.gain).flatten(1))


def recipe(dtype):
    torch.manual_seed(0)
    model = Gated().to(dtype)
    x = torch.randn(256, 10)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]).float(), batch[1]),
        "data": list(zip(x.to(dtype).split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 40,
    }


def sick():
    return recipe(torch.bfloat16)


def healthy():
    return recipe(torch.float32)
