"""A classifier: nll_loss of its raw scores, and a dropout that was meant as the share to keep."""

import torch
import torch.nn.functional as F
from torch import nn


class Thinned(nn.Module):
    def __init__(self, dropped):
        super().__init__()
        self.dropped = dropped

    def forward(self, x):
        kept = torch.rand_like(x) > self.dropped
        return x * kept / (1 - self.dropped)


def recipe(loss, dropout=0.0, steps=24):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(
        nn.Linear(8, 24),
        nn.Tanh(),
        Thinned(dropout),
        nn.Linear(24, 24),
        nn.Tanh(),
        Thinned(dropout),
        nn.Linear(24, 4),
    )
    return {
        "model": model,
        "loss_fn": lambda model, batch: loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": steps,
    }


def sick_logs():
    return recipe(F.nll_loss)


def healthy_logs():
    return recipe(F.cross_entropy)


def sick_dropout():
    return recipe(F.cross_entropy, dropout=0.9, steps=60)


def healthy_dropout():
    return recipe(F.cross_entropy, dropout=0.1, steps=60)
