"""Sensors whose rare faults are to be drawn more often."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def recipe(power):
    torch.manual_seed(0)
    readings = torch.randn(400, 8)
    faults = (readings[:, 0] + readings[:, 1] > 1.6).long()
    weights = torch.bincount(faults).double() ** power
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    sampler = WeightedRandomSampler(weights[faults], len(faults))
    return {
        "model": model,
        "data": DataLoader(TensorDataset(readings, faults), batch_size=16, sampler=sampler),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "criterion": nn.CrossEntropyLoss(),
        "max_steps": 20,
    }


def sick():
    return recipe(power=1)


def healthy():
    return recipe(power=-1)
