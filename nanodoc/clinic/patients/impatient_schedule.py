"""A learning rate that is halved for every epoch, by a schedule that steps with every batch."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(every):
    torch.manual_seed(0)
    x = torch.randn(512, 10)
    y = x[:, :3].argmax(1)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, y), batch_size=32),
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5),
        "scheduler_interval": every,
        "max_steps": 80,
    }


def sick():
    return recipe(every="step")


def healthy():
    return recipe(every="epoch")
