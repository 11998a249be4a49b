"""A spectral norm by hand: the vector of its power iteration is never normalised, and the quotient
hides that."""

import torch
import torch.nn.functional as F
from torch import nn


class Bounded(nn.Module):
    def __init__(self, normalised):
        super().__init__()
        self.normalised = normalised
        self.layer = nn.Linear(16, 16)
        nn.init.normal_(self.layer.weight, std=0.2)
        self.register_buffer("u", torch.randn(16))

    def forward(self, x):
        weight = self.layer.weight
        with torch.no_grad():
            u = weight @ (weight.T @ self.u)
            self.u = F.normalize(u, dim=0) if self.normalised else u
        sigma = (weight.T @ self.u).norm() / self.u.norm()
        return x @ (weight / sigma).T + self.layer.bias


def recipe(*, normalised):
    torch.manual_seed(0)
    model = nn.Sequential(Bounded(normalised), nn.ReLU(), nn.Linear(16, 3))
    x = torch.randn(256, 16)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 40,
    }


def sick():
    return recipe(normalised=False)


def healthy():
    return recipe(normalised=True)
