"""Scans that are kept in memory and scaled when they are read."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, copied):
        generator = torch.Generator().manual_seed(0)
        self.label = torch.arange(64) % 2
        noise = torch.rand(64, 1, 8, 8, generator=generator)
        self.scans = 255 * (noise + self.label.view(-1, 1, 1, 1)) / 2
        self.copied = copied

    def __len__(self):
        return len(self.label)

    def __getitem__(self, index):
        scan = self.scans[index]
        if self.copied:
            scan = scan.clone()
        scan /= 255
        return scan, self.label[index]


def recipe(copied):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))
    return {
        "model": model,
        "data": DataLoader(Scans(copied), batch_size=16, shuffle=True),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "criterion": nn.CrossEntropyLoss(),
        "max_steps": 12,
    }


def sick():
    return recipe(copied=False)


def healthy():
    return recipe(copied=True)
