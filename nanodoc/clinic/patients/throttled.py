"""A gradient clip of 1e-4, left over from an unstable run: the loss is a flat line."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(most):
    torch.manual_seed(0)
    x = torch.randn(512, 20)
    y = x[:, :5].argmax(1)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train_step(model, batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), most)
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
    return recipe(1e-4)


def healthy():
    return recipe(1.0)
