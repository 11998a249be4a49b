"""A recurrent cell that keeps its state from one step to the next, graph and all."""

import torch
import torch.nn.functional as F
from torch import nn


class Tracker(nn.Module):
    def __init__(self, truncate):
        super().__init__()
        self.cell, self.read = nn.GRUCell(4, 12), nn.Linear(12, 1)
        self.truncate, self.state = truncate, None

    def forward(self, x):
        state = self.cell(x, self.state)
        if self.truncate:
            self.state = state.detach()
        else:
            self.state = state
        return self.read(state)


def recipe(truncate):
    torch.manual_seed(0)
    model = Tracker(truncate)
    stream = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(6)]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": stream,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick():
    return recipe(truncate=False)


def healthy():
    return recipe(truncate=True)
