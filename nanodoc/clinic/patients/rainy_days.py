"""A forecast of each day's rain from the days before it."""

import torch
import torch.nn.functional as F
from torch import nn

DAYS = 8


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.GRUCell(3, 24), nn.Linear(24, 1)

    def forward(self, days):
        state, said = None, []
        for day in days.unbind(1):
            state = self.cell(day, state)
            said.append(self.out(state)[:, 0])
        return said


def recipe(joined):
    torch.manual_seed(0)
    weather = torch.randn(640, DAYS, 3)
    rain = weather.cumsum(1).mul(0.3).sin().sum(2)
    model = Forecast()

    def loss_fn(model, batch):
        days, wanted = batch
        total = 0.0
        for day, said in enumerate(model(days)):
            loss = F.mse_loss(said, wanted[:, day])
            total = joined(total, loss)
        return total

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(zip(weather.split(32), rain.split(32), strict=True)) * 2,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 40,
    }


def sick():
    return recipe(lambda total, loss: loss)


def healthy():
    return recipe(lambda total, loss: total + loss / DAYS)
