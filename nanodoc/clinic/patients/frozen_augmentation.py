"""An augmentation that seeds itself in every batch, over a sampler that draws from that seed."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Seeded(torch.utils.data.Sampler):
    def __init__(self, size, again):
        self.size, self.again = size, again

    def __iter__(self):
        generator = torch.Generator()
        for _ in range(self.size // 16):
            if self.again:
                generator.manual_seed(0)
            yield torch.randperm(self.size, generator=generator)[:16].tolist()

    def __len__(self):
        return self.size // 16


def recipe(again):
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, y), batch_sampler=Seeded(256, again)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 32,
    }


def sick():
    return recipe(again=True)


def healthy():
    return recipe(again=False)
