"""Two noisy glances at each of many patterns, which a network is to find together."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(positives):
    torch.manual_seed(0)
    patterns = torch.randn(320, 16)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))

    def loss_fn(model, seen):
        glances = torch.cat([seen + 0.3 * torch.randn_like(seen) for _ in range(2)])
        places = F.normalize(model(glances), dim=1)
        alike = places @ places.T / 0.5
        alike = alike.masked_fill(torch.eye(len(alike), device=alike.device).bool(), -1e9)
        return F.cross_entropy(alike, positives(len(seen)).to(alike.device))

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(patterns.split(32)),
        "optimizer": torch.optim.Adam(model.parameters(), 1e-3),
    }


def sick():
    return recipe(lambda samples: torch.arange(2 * samples) ^ 1)


def healthy():
    return recipe(lambda samples: torch.arange(2 * samples).roll(samples))
