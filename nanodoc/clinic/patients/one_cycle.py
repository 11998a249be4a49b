"""A classifier whose schedule climbs to a learning rate that no weights survive."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(peak):
    torch.manual_seed(0)
    x = torch.randn(256, 12)
    y = (x[:, :4].sum(1) > 0).long() + 2 * (x[:, 4:8].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peak, total_steps=80)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, y), batch_size=32),
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scheduler_interval": "step",
        "max_steps": 80,
    }


def sick():
    return recipe(peak=400.0)


def healthy():
    return recipe(peak=0.1)
