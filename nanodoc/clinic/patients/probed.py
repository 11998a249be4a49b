"""A spot marked with nanodoc.probe that turns infinite on its own, and a temperature that counts
calls where no replay finds them."""

import torch
import torch.nn.functional as F
from torch import nn

import nanodoc


class Net(nn.Module):
    calls = 0

    def __init__(self, table, cools):
        super().__init__()
        self.body, self.head, self.cools = nn.Linear(4, 8), nn.Linear(8, 1), cools
        self.table = table

    def forward(self, x):
        h = torch.tanh(self.body(x))
        nanodoc.probe(self.table[int(x[0, 0] > 0)], "table")
        if self.cools:
            Net.calls += 1
            h = h / (1 - Net.calls / 6)
        return self.head(h)


def recipe(table=0.0, cools=False):
    torch.manual_seed(0)
    model = Net(torch.full((2,), table), cools)
    x = torch.randn(64, 4)
    y = x[:, :1] * x[:, 1:2]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(8), y.split(8), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 12,
    }


def sick_mark():
    return recipe(table=float("inf"))


def healthy_mark():
    return recipe()


def sick_counter():
    return recipe(cools=True)


def healthy_counter():
    return recipe()
