"""A loop that steps and never clears its gradients."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(clears):
    torch.manual_seed(0)
    x = torch.randn(256, 10)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))

    def train_step(model, batch, optimizer, scaler=None):
        loss = F.cross_entropy(model(batch[0]), batch[1])
        if clears:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": DataLoader(TensorDataset(x, y), batch_size=32),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.3),
        "max_steps": 80,
    }


def sick():
    return recipe(clears=False)


def healthy():
    return recipe(clears=True)
