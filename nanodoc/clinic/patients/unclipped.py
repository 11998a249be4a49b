"""A recurrent net written by hand, with transition weights that make gradients grow from step to
step of the sequence."""

import torch
import torch.nn.functional as F
from torch import nn


class Memory(nn.Module):
    def __init__(self, width, gain):
        super().__init__()
        self.take, self.carry, self.read = (
            nn.Linear(2, width),
            nn.Linear(width, width, bias=False),
            nn.Linear(width, 1),
        )
        nn.init.normal_(self.carry.weight, std=gain / width**0.5)

    def forward(self, sequence):
        state = torch.zeros(len(sequence), self.carry.in_features)
        for item in sequence.unbind(1):
            state = F.relu(self.take(item) + self.carry(state))
        return self.read(state).squeeze(-1)


def recipe(gain):
    torch.manual_seed(0)
    model = Memory(32, gain)
    x = torch.randn(96, 20, 2)
    data = [(x[i : i + 16], x[i : i + 16, :, 0].mean(1)) for i in range(0, 96, 16)]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": data,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "max_steps": 24,
    }


def sick():
    return recipe(gain=2.2)


def healthy():
    return recipe(gain=0.9)
