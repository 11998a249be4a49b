"""A segmentation net whose sigmoid is applied twice: once by the model, once by the loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Masks(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 1, 3, padding=1),
            last,
        )

    def forward(self, x):
        return self.net(x)


def recipe(last):
    torch.manual_seed(0)
    x = torch.randn(96, 1, 12, 12)
    y = (F.avg_pool2d(x, 3, stride=1, padding=1) > 0).float()
    model = Masks(last)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.binary_cross_entropy_with_logits(
            model(batch[0]), batch[1]
        ),
        "data": DataLoader(TensorDataset(x, y), batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 30,
    }


def sick():
    return recipe(last=nn.Sigmoid())


def healthy():
    return recipe(last=nn.Identity())
