"""Steps that torch refuses: a head for another size of image, inputs as NumPy makes them, and a
table on the device of no device."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, features=128, materialised=True):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.Linear(features, 3)
        with torch.device("meta"):
            self.gain = nn.Parameter(torch.empty(8, 1, 1))
        if materialised:
            self.gain = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x):
        h = torch.relu(self.conv(x)) * self.gain
        return self.head(h.flatten(1))


def recipe(model, dtype=torch.float32):
    x = torch.randn(64, 1, 8, 8)
    y = (4 * x.mean((1, 2, 3))).clamp(-1, 1).round().long() + 1
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.to(dtype).split(16), y.split(16), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 8,
    }


def sick_shape():
    torch.manual_seed(0)
    return recipe(Net(features=512))


def healthy_shape():
    torch.manual_seed(0)
    return recipe(Net())


def sick_dtype():
    torch.manual_seed(0)
    return recipe(Net(), dtype=torch.float64)


def healthy_dtype():
    torch.manual_seed(0)
    return recipe(Net())


def sick_meta():
    torch.manual_seed(0)
    return recipe(Net(materialised=False))


def healthy_meta():
    torch.manual_seed(0)
    return recipe(Net())
