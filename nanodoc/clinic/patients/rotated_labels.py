"""Labels that were turned by one sample to test a metric, and never turned back."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(labels_of):
    torch.manual_seed(0)
    x = torch.randn(2048, 20)
    y = x[:, :5].argmax(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def train_step(model, batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), labels_of(batch[1]))
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True),
        "optimizer": optimizer,
        "max_steps": 120,
    }


def sick():
    return recipe(lambda y: y.roll(1, 0))


def healthy():
    return recipe(lambda y: y)
