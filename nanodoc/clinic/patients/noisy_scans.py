"""Scans that are augmented by noise, in the workers of a loader."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, own):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(0, 3, (96,), generator=generator)
        self.scans = torch.randn(96, 12, generator=generator) + self.labels[:, None]
        self.random = np.random.default_rng(7) if own else None

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, index):
        if self.random is not None:
            noise = torch.from_numpy(self.random.normal(size=12).astype(np.float32))
        else:
            noise = torch.randn(12)
        return self.scans[index] + 0.1 * noise, self.labels[index]


def recipe(own):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 4096), nn.ReLU(), nn.Linear(4096, 512), nn.Linear(512, 3))
    return {
        "model": model,
        "data": DataLoader(Scans(own), batch_size=8, shuffle=True, num_workers=2),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "criterion": nn.CrossEntropyLoss(),
        "max_steps": 12,
    }


def sick():
    return recipe(own=True)


def healthy():
    return recipe(own=False)
