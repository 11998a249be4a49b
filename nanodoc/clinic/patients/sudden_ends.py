"""A layer with a helper in C: one that reads a null pointer, and one that waits for a lock that it
holds."""

import ctypes
import threading

import torch
import torch.nn.functional as F
from torch import nn

LOCK = threading.Lock()


class Helped(nn.Module):
    def __init__(self, trouble):
        super().__init__()
        self.linear, self.trouble, self.calls = nn.Linear(4, 8), trouble, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 3 and self.trouble == "pointer":
            ctypes.string_at(0)
        with LOCK:
            if self.calls == 3 and self.trouble == "lock":
                LOCK.acquire()
            return torch.tanh(self.linear(x))


def recipe(trouble=None):
    torch.manual_seed(0)
    model = nn.Sequential(Helped(trouble), nn.Linear(8, 1))
    x = torch.randn(48, 4)
    y = x[:, :1] * x[:, 1:2]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(8), y.split(8), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick_pointer():
    return recipe("pointer")


def healthy_pointer():
    return recipe()


def sick_lock():
    return recipe("lock")


def healthy_lock():
    return recipe()
