"""An encoder of two blocks: one with a norm that is made and never called, one whose projection is
made anew in every forward pass."""

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    def __init__(self, both_norms=True, kept=True):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)
        self.both_norms, self.kept = both_norms, kept

    def forward(self, x):
        h = torch.relu(self.norm1(self.first(x)))
        h = self.second(h) if self.kept else nn.Linear(16, 16)(h)
        h = self.norm2(h) if self.both_norms else self.norm1(h)
        return self.head(torch.relu(h))


def recipe(model):
    x = torch.randn(96, 8)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(24), y.split(24), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 16,
    }


def sick_norm():
    torch.manual_seed(0)
    return recipe(Encoder(both_norms=False))


def healthy_norm():
    torch.manual_seed(0)
    return recipe(Encoder())


def sick_projection():
    torch.manual_seed(0)
    return recipe(Encoder(kept=False))


def healthy_projection():
    torch.manual_seed(0)
    return recipe(Encoder())
