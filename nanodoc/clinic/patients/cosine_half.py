"""Two-tower matching under float16 autocast: rooted energies, then a cosine similarity; one item is
empty."""

import torch
import torch.nn.functional as F
from torch import nn


class Towers(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.left, self.right, self.floor = nn.Linear(16, 32), nn.Linear(16, 32), floor

    def forward(self, a, b):
        a, b = self.left(a), self.right(b)
        root = torch.sqrt(a * a + self.floor)
        return F.cosine_similarity(root.float(), b.float())


def recipe(floor):
    torch.manual_seed(0)
    model = Towers(floor)
    nn.init.zeros_(model.left.bias)
    a, b, y = torch.randn(48, 16), torch.randn(48, 16), torch.rand(48)
    a[33] = 0.0  # an item without features

    def loss_fn(model, batch):
        a, b, y = batch
        return F.mse_loss(model(a, b), y)

    batches = [(a[i : i + 12], b[i : i + 12], y[i : i + 12]) for i in range(0, 48, 12)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 256.0},
        "max_steps": 6,
    }


def sick():
    return recipe(floor=0.0)


def healthy():
    return recipe(floor=1e-3)
