"""Per-batch standardised returns, and a last batch of one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(drop_last):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    x, returns = torch.randn(33, 3), torch.randn(33)

    def loss_fn(model, batch):
        x, returns = batch
        target = (returns - returns.mean()) / (returns.std() + 1e-6)
        return (model(x).squeeze(1) - target).pow(2).mean()

    data = DataLoader(TensorDataset(x, returns), batch_size=8, drop_last=drop_last)
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": data,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_steps": 6,
    }


def sick():
    return recipe(drop_last=False)


def healthy():
    return recipe(drop_last=True)
