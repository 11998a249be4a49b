"""Image retrieval: generalised-mean pooling over feature maps that ReLU has set to zero."""

import torch
import torch.nn.functional as F
from torch import nn


class GeneralisedMean(nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.p, self.floor = nn.Parameter(torch.tensor(3.0)), floor

    def forward(self, maps):
        if self.floor:
            maps = maps.clamp(min=1e-6)
        return maps.pow(self.p).mean((2, 3)).pow(1 / self.p)


def recipe(floor):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), GeneralisedMean(floor), nn.Linear(12, 4)
    )
    images, labels = torch.rand(64, 1, 6, 6), torch.randint(0, 4, (64,))
    # an underexposed picture: some channels are zero everywhere after ReLU
    images[20] = -3.0 * torch.ones(1, 6, 6)
    batches = [(images[i : i + 16], labels[i : i + 16]) for i in range(0, 64, 16)]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "max_steps": 8,
    }


def sick():
    return recipe(floor=False)


def healthy():
    return recipe(floor=True)
