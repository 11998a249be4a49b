"""Tabular regression with one corrupt record."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, corrupt):
        generator = torch.Generator().manual_seed(3)
        self.x, self.y = (
            torch.randn(90, 7, generator=generator),
            torch.randn(90, generator=generator),
        )
        if corrupt:
            self.x[63, 2] = float("nan")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"features": self.x[index], "target": self.y[index]}


def recipe(corrupt):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))
    data = DataLoader(
        Table(corrupt), batch_size=15, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(
            model(batch["features"]).squeeze(1), batch["target"]
        ),
        "data": data,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "max_steps": 6,
    }


def sick():
    return recipe(corrupt=True)


def healthy():
    return recipe(corrupt=False)
