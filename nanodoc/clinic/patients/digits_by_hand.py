"""nll_loss of raw scores, and a classifier that cannot learn one batch by heart because its inputs
are sliced away."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, sees):
        super().__init__()
        self.sees = sees
        self.layers = nn.Sequential(nn.Linear(9, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, x):
        bias = torch.ones(len(x), 1)
        return self.layers(torch.cat([x * self.sees, bias], 1))


def recipe(loss, sees=1.0, steps=24):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = x[:, :4].argmax(1)
    model = Net(sees)
    return {
        "model": model,
        "loss_fn": lambda model, batch: loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(32), y.split(32))),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": steps,
    }


def sick_logs():
    return recipe(F.nll_loss)


def healthy_logs():
    return recipe(F.cross_entropy)


def sick_blind():
    return recipe(F.cross_entropy, sees=0.0, steps=60)


def healthy_blind():
    return recipe(F.cross_entropy, steps=60)
