"""A GRU that wants time first and is given the batch first: every sample reads the ones before
it."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    def __init__(self, **order):
        super().__init__()
        self.rnn = nn.GRU(5, 16, bidirectional=True, **order)
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        states, _ = self.rnn(x)
        return self.head(states.mean(1))


def recipe(**order):
    torch.manual_seed(0)
    model = Reader(**order)
    x = torch.randn(64, 9, 5)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, (x.mean((1, 2)) > 0).long()), batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 6,
    }


def sick():
    return recipe()


def healthy():
    return recipe(batch_first=True)
