"""Pairs of questions that ask the same or not, embedded next to each other or apart."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(labels):
    torch.manual_seed(0)
    first = torch.randn(256, 8)
    same = torch.arange(256) % 2
    noise = torch.randn(256, 8)
    second = torch.where(same[:, None] == 1, first + 0.1 * noise, noise)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def loss_fn(model, batch):
        return F.cosine_embedding_loss(model(batch[0]), model(batch[1]), batch[2])

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(first, second, labels(same)), batch_size=32),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 20,
    }


def sick():
    return recipe(lambda same: same)


def healthy():
    return recipe(lambda same: 2 * same - 1)
