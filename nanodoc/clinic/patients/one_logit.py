"""A yes-or-no question put to cross_entropy with a single logit."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(outputs):
    torch.manual_seed(0)
    x = torch.randn(192, 8)
    answer = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))

    def loss_fn(model, batch):
        scores, target = model(batch[0]), batch[1]
        if outputs == 1:
            target = torch.zeros_like(target)
        return F.cross_entropy(scores, target)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(x, answer), batch_size=24),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe(outputs=1)


def healthy():
    return recipe(outputs=2)
