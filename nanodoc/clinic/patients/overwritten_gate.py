"""A gate whose sigmoid is scaled in place, though backward needs the sigmoid itself."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Gated(nn.Module):
    def __init__(self, in_place):
        super().__init__()
        self.value, self.gate, self.out = nn.Linear(6, 12), nn.Linear(6, 12), nn.Linear(12, 1)
        self.in_place = in_place

    def forward(self, x):
        gate = torch.sigmoid(self.gate(x))
        if self.in_place:
            gate *= 2.0
        else:
            gate = gate * 2.0
        return self.out(gate * self.value(x))


def recipe(in_place):
    torch.manual_seed(0)
    model = Gated(in_place)
    x = torch.randn(64, 6)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16),
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-2),
        "max_steps": 4,
    }


def sick():
    return recipe(in_place=True)


def healthy():
    return recipe(in_place=False)
