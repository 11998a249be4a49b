"""A classifier whose inputs are multiplied away before the first layer: it can only guess."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sensor(nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5))
        self.gain = gain

    def forward(self, x):
        return self.layers(x * self.gain)


def recipe(gain):
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    y = torch.arange(400) % 5
    x[torch.arange(400), y] += 3.0
    model = Sensor(gain)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, y), batch_size=50),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_steps": 48,
    }


def sick():
    return recipe(gain=1e-4)


def healthy():
    return recipe(gain=1.0)
