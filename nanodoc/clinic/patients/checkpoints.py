"""Weights of an earlier run: saved from the DDP wrapper and loaded without strict, and a schedule
that the file does not hold."""

import torch
import torch.nn.functional as F
from torch import nn


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def recipe(renamed, key="model"):
    torch.manual_seed(1)
    saved = {"model": {f"module.{name}": value for name, value in net().state_dict().items()}}
    torch.manual_seed(0)
    model = net()
    state = saved[key]
    if renamed:
        state = {name.removeprefix("module."): value for name, value in state.items()}
    model.load_state_dict(state, strict=False)
    x = torch.randn(96, 8)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(24), y.split(24))),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 16,
    }


def sick_names():
    return recipe(renamed=False)


def healthy_names():
    return recipe(renamed=True)


def sick_key():
    return recipe(renamed=True, key="state_dict")


def healthy_key():
    return recipe(renamed=True)
