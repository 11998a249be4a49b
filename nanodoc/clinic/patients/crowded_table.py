"""Ratings from the ids of a user, an item and a weekday, in one table."""

import torch
import torch.nn.functional as F
from torch import nn

SIZES = (60, 25, 7)


class Ratings(nn.Module):
    def __init__(self, apart):
        super().__init__()
        self.table = nn.Embedding(sum(SIZES), 8)
        self.out = nn.Linear(24, 1)
        offsets = torch.tensor([0, *SIZES[:-1]]).cumsum(0)
        self.register_buffer("offsets", offsets if apart else None)

    def forward(self, ids):
        if self.offsets is not None:
            ids = ids + self.offsets
        return self.out(self.table(ids).flatten(1)).squeeze(1)


def recipe(apart):
    torch.manual_seed(0)
    model = Ratings(apart)
    ids = torch.stack([torch.randint(0, size, (24, 64)) for size in SIZES], 2)
    rating = torch.randn(60)[ids[:, :, 0]] + torch.randn(25)[ids[:, :, 1]]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": list(zip(ids, rating, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe(apart=False)


def healthy():
    return recipe(apart=True)
