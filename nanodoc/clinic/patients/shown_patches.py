"""Patches of a signal are hidden from an autoencoder, and the loss is taken over those that it is
shown."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(asked_of):
    torch.manual_seed(0)
    height = torch.randn(512, 1, 1)
    signals = height * torch.linspace(-1, 1, 24).view(1, 6, 4) + 0.1 * torch.randn(512, 6, 4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 24))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def train_step(model, batch):
        optimizer.zero_grad()
        keep = torch.rand(len(batch[0]), 6, 1) > 0.5
        error = (model(batch[0] * keep).view_as(batch[0]) - batch[0]) ** 2
        loss = (error * asked_of(keep)).mean()
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": DataLoader(TensorDataset(signals), batch_size=32, shuffle=True),
        "optimizer": optimizer,
        "max_steps": 40,
    }


def sick():
    return recipe(lambda keep: keep)


def healthy():
    return recipe(lambda keep: ~keep)
