"""A loop whose validation, every few steps, leaves the model in eval mode."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, held_out, back):
        self.held_out, self.back, self.step = held_out, back, 0

    def validate(self, model):
        model.eval()
        with torch.no_grad():
            model(self.held_out)

    def train_step(self, model, batch, optimizer, scaler=None):
        if self.back:
            model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        self.step += 1
        if self.step % 8 == 0:
            self.validate(model)
        return loss


def recipe(back):
    torch.manual_seed(0)
    x = torch.randn(256, 12)
    y = x[:, :4].argmax(1)
    model = nn.Sequential(
        nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)
    )
    return {
        "model": model,
        "train_step": Trainer(x[:32], back).train_step,
        "data": DataLoader(TensorDataset(x, y), batch_size=32),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 30,
    }


def sick():
    return recipe(back=False)


def healthy():
    return recipe(back=True)
