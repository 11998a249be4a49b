"""A cell that reads a sequence place by place."""

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, forgets):
        super().__init__()
        self.forgets = forgets
        self.cell, self.out = nn.GRUCell(4, 16), nn.Linear(16, 2)

    def forward(self, x):
        state = torch.zeros(len(x), 16, device=x.device)
        for place in range(x.shape[1]):
            if self.forgets:
                state = torch.zeros_like(state)
            state = self.cell(x[:, place], state)
        return self.out(state)


def recipe(forgets):
    torch.manual_seed(0)
    x = torch.randn(256, 6, 4)
    y = (x[:, :, 0].sum(1) > 0).long()
    model = Reader(forgets)
    return {
        "model": model,
        "criterion": nn.CrossEntropyLoss(),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 24,
    }


def sick():
    return recipe(True)


def healthy():
    return recipe(False)
