"""A one-hot of customers' raw numbers, which needs a column for every number there could be."""

import torch
import torch.nn.functional as F
from torch import nn


class Preferences(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.head = nn.Linear(6, 16), nn.Linear(16, 8)

    def forward(self, items, customers):
        scores = self.head(torch.tanh(self.items(items)))
        chosen = F.one_hot(customers)
        return scores.new_zeros(len(scores), chosen.shape[1]), scores, chosen


def loss_fn(model, batch):
    _, scores, chosen = model(batch[0], batch[1])
    return F.mse_loss(scores, chosen[:, :8].float())


def recipe(numbered):
    torch.manual_seed(0)
    items = torch.randn(64, 6)
    customers = torch.arange(64) % 8
    if not numbered:
        customers = customers * 7_919_000_000_000 + 13
    model = Preferences()
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(zip(items.split(16), customers.split(16), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 8,
    }


def sick():
    return recipe(numbered=False)


def healthy():
    return recipe(numbered=True)
