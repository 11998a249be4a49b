"""Teas sorted into three shelves by one rating. A layer norm over that single number returns the
same for every tea."""

import torch
import torch.nn.functional as F
from torch import nn


class Shelves(nn.Module):
    def __init__(self, over):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.SiLU())
        self.rating = nn.Linear(16, over)
        self.norm = nn.LayerNorm(over)
        self.shelf = nn.Linear(over, 3)

    def forward(self, leaves):
        rated = self.norm(self.rating(self.body(leaves)))
        return self.shelf(rated)


def sick():
    return _recipe(over=1)


def healthy():
    return _recipe(over=8)


def _recipe(over):
    torch.manual_seed(0)
    model = Shelves(over)
    leaves = torch.randn(640, 5)
    shelf = (leaves.sum(1) > -1).long() + (leaves.sum(1) > 1).long()
    return {
        "model": model,
        "data": torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(leaves, shelf), 32, shuffle=True
        ),
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
    }
