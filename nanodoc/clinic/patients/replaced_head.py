"""A new head for new classes, put in after the optimizer was made."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.body(x))


def recipe(late):
    torch.manual_seed(0)
    model = Classifier(10)
    if late:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.head = nn.Linear(16, 4)
    else:
        model.head = nn.Linear(16, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 8)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16),
        "optimizer": optimizer,
        "max_steps": 6,
    }


def sick():
    return recipe(late=True)


def healthy():
    return recipe(late=False)
