"""The water level of the next hours, forecast from the last day by a model that gives a tensor."""

import torch
import torch.nn.functional as F
from torch import nn

_PAST, _NEXT = 24, 4


def sick():
    return _recipe(lambda given: given[0], lambda wanted: wanted[0])


def healthy():
    return _recipe(lambda given: given, lambda wanted: wanted)


def _recipe(forecast, of):
    torch.manual_seed(0)
    hours = torch.arange(3000.0)
    level = (hours * 0.5059).sin() + 0.3 * (hours * 0.2618).sin() + 0.05 * torch.randn(3000)
    windows = level.unfold(0, _PAST + _NEXT, 1)
    batches = windows[torch.randperm(len(windows))].split(32)[:80]
    model = nn.Sequential(nn.Linear(_PAST, 48), nn.ReLU(), nn.Linear(48, _NEXT))

    def loss_fn(model, batch):
        past, following = batch.split([_PAST, _NEXT], 1)
        given = forecast(model(past))
        return F.mse_loss(given, of(following))

    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "loss_fn": loss_fn,
        "data": list(batches),
    }
