"""A frozen network with batch norm, and a head that learns."""

import torch
import torch.nn.functional as F
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def recipe(before, after):
    torch.manual_seed(0)
    model = Network()
    for parameter in model.body.parameters():
        parameter.requires_grad = False
    if before:
        model.body.eval()
    model.train()
    if after:
        model.body.eval()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
    x = torch.randn(12, 16, 1, 8, 8) + torch.arange(3).repeat(16)[:16].view(1, 16, 1, 1, 1)
    y = torch.arange(3).repeat(16)[:16].expand(12, 16)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x, y, strict=True)),
        "optimizer": optimizer,
        "max_steps": 12,
    }


def sick():
    return recipe(before=True, after=False)


def healthy():
    return recipe(before=True, after=True)
