"""Frames of sound, (sample, time, band), for convolutions over time."""

import torch
import torch.nn.functional as F
from torch import nn


class Listener(nn.Module):
    def __init__(self, moved):
        super().__init__()
        self.sound = nn.Conv1d(12, 16, 3, padding=1)
        self.out = nn.Linear(16, 4)
        self.moved = moved

    def forward(self, frames):
        n, time, bands = frames.shape
        if self.moved:
            x = frames.transpose(1, 2)
        else:
            x = frames.reshape(n, bands, time)
        return self.out(F.relu(self.sound(x)).mean(2))


def recipe(moved):
    torch.manual_seed(0)
    model = Listener(moved)
    y = torch.randint(0, 4, (20, 16))
    x = torch.randn(20, 16, 30, 12) + F.one_hot(3 * y, 12)[:, :, None]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x, y, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 20,
    }


def sick():
    return recipe(moved=False)


def healthy():
    return recipe(moved=True)
