"""A rank's share of a data set, drawn anew in every pass."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Passes:
    def __init__(self, loader, tells):
        self.loader, self.tells = loader, tells
        self.epoch = 0

    def __iter__(self):
        if self.tells:
            self.loader.sampler.set_epoch(self.epoch)
        self.epoch += 1
        return iter(self.loader)


def recipe(tells):
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    data = TensorDataset(x, x[:, :4].argmax(1))
    sampler = DistributedSampler(data, num_replicas=2, rank=0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": Passes(DataLoader(data, batch_size=16, sampler=sampler), tells),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "max_steps": 12,
    }


def sick():
    return recipe(False)


def healthy():
    return recipe(True)
