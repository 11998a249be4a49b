"""A table of customers: columns as they come (incomes, years), and labels of which one is rare."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def recipe(normalised, share):
    torch.manual_seed(0)
    income = 40 + 12 * torch.randn(512)  # thousands a year
    year = 1970 + 15 * torch.randn(512)
    visits = torch.randn(512)
    x = torch.stack([income, year, visits], 1)
    left = (visits > torch.quantile(visits, 1 - share)).long()
    if normalised:
        x = (x - x.mean(0)) / x.std(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 2))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(x, left), batch_size=128),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick_scale():
    return recipe(normalised=False, share=0.5)


def healthy_scale():
    return recipe(normalised=True, share=0.5)


def sick_rare():
    return recipe(normalised=True, share=0.07)


def healthy_rare():
    return recipe(normalised=True, share=0.3)
