"""Prices from areas in square metres: the learning rate that suits normalised features is far too
high for these."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(scale):
    torch.manual_seed(0)
    rooms, area = torch.randint(1, 7, (128, 1)).float(), 30 + 90 * torch.rand(128, 1)
    price = 0.8 * rooms + 0.05 * area + 0.1 * torch.randn(128, 1)
    features = torch.cat([rooms, area], 1)
    model = nn.Linear(2, 1)
    if scale:
        features = (features - features.mean(0)) / features.std(0)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(features, price), batch_size=32),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 40,
    }


def sick():
    return recipe(scale=False)


def healthy():
    return recipe(scale=True)
