"""A classifier whose loss is written by hand, and forgets its minus sign."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def likelihood(model, batch):
    scores = F.log_softmax(model(batch[0]), dim=1)
    picked = scores.gather(1, batch[1][:, None])
    return picked.mean()


def negative(model, batch):
    scores = F.log_softmax(model(batch[0]), dim=1)
    picked = scores.gather(1, batch[1][:, None])
    return -picked.mean()


def recipe(loss_fn):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(x, y), batch_size=32),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "max_steps": 24,
    }


def sick():
    return recipe(likelihood)


def healthy():
    return recipe(negative)
