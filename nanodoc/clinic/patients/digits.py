"""Handwritten digits (scikit-learn's, 1797 images of 8×8) classified with generalised-mean
pooling."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GeneralisedMean(nn.Module):
    """(mean of xᵖ)^(1/p) over the image, p learned."""

    def __init__(self, floor):
        super().__init__()
        self.p, self.floor = nn.Parameter(torch.tensor(3.0)), floor

    def forward(self, x):
        pooled = x.clamp(min=self.floor).pow(self.p).mean((2, 3))
        return pooled.pow(1.0 / self.p)


class DigitNet(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.pool, self.head = GeneralisedMean(floor), nn.Linear(16, 10)
        nn.init.constant_(self.body[2].bias, 0.5)

    def forward(self, images):
        return self.head(self.pool(self.body(images)))


def recipe(floor):
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    model = DigitNet(floor)
    data = DataLoader(TensorDataset(images, torch.tensor(labels)), batch_size=64, shuffle=True)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": data,
        "optimizer": torch.optim.Adam(model.parameters(), lr=5e-3),
        "max_steps": 150,
    }


def sick():
    return recipe(floor=0.0)


def healthy():
    return recipe(floor=1e-6)
