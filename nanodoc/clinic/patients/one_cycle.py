"""A regression whose schedule climbs to a learning rate that the last layer does not survive."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(peak):
    torch.manual_seed(0)
    x = torch.randn(256, 12)
    y = torch.sin(x[:, :3].sum(1, keepdim=True)) + 0.1 * torch.randn(256, 1)
    model = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=80)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, y), batch_size=32),
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scheduler_interval": "step",
        "max_steps": 80,
    }


def sick():
    return recipe(peak=0.8)


def healthy():
    return recipe(peak=0.08)
