"""A mean over the selected tokens, whose 1e-8 against an empty selection is 0 in float16."""

import torch
import torch.nn.functional as F
from torch import nn


class Pooled(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.encode, self.head, self.eps = nn.Linear(6, 16), nn.Linear(16, 1), eps

    def forward(self, x, chosen):
        hidden = self.encode(x)
        weight = chosen.to(hidden.dtype).unsqueeze(-1)
        pooled = (hidden * weight).sum(1) / (weight.sum(1) + self.eps)
        return self.head(pooled).squeeze(-1)


def recipe(eps):
    torch.manual_seed(0)
    model = Pooled(eps)
    x, chosen, y = torch.randn(40, 5, 6), torch.rand(40, 5) < 0.7, torch.randn(40)
    chosen[:, 0] = True
    chosen[26] = False  # a record of which nothing is selected

    def loss_fn(model, batch):
        x, chosen, y = batch
        return F.mse_loss(model(x, chosen).float(), y)

    batches = [(x[i : i + 8], chosen[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 128.0},
        "max_steps": 5,
    }


def sick():
    return recipe(eps=1e-8)


def healthy():
    return recipe(eps=1e-3)
