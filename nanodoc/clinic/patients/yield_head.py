"""A regression of changes, up and down, by a model that ends in ReLU, or in millions."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Yield(nn.Module):
    def __init__(self, rectified):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 24), nn.ReLU()), nn.Linear(24, 1)
        self.rectified = rectified

    def forward(self, x):
        out = self.head(self.body(x))
        return F.relu(out) if self.rectified else out


def recipe(rectified, millions=False):
    torch.manual_seed(0)
    x = torch.randn(256, 6)
    change = x[:, :1] - x[:, 1:2]
    if millions:
        change = change * 1e6
    model = Yield(rectified)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, change), batch_size=32),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 60,
    }


def sick():
    return recipe(rectified=True)


def healthy():
    return recipe(rectified=False)


def sick_millions():
    return recipe(rectified=False, millions=True)


def healthy_millions():
    return recipe(rectified=False)
