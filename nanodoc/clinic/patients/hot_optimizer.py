"""An Adam ten times too hot: nothing overflows, the loss jumps, comes back to where it began and
stays there."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(optimizer):
    torch.manual_seed(0)
    x = torch.randn(512, 20)
    y = x[:, :5].argmax(1)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)
    )
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
        "optimizer": optimizer(model),
        "max_steps": 80,
    }


def sick():
    return recipe(lambda model: torch.optim.Adam(model.parameters(), lr=0.3))


def healthy():
    return recipe(lambda model: torch.optim.Adam(model.parameters(), lr=0.003))
