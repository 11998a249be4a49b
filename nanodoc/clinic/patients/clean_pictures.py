"""A diffusion model that learns the noise in pictures."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(noisy):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 1, 3, padding=1))

    def loss_fn(model, pictures):
        noise = torch.randn_like(pictures)
        share = torch.rand(len(pictures), 1, 1, 1, device=pictures.device)
        mixed = share.sqrt() * pictures + (1 - share).sqrt() * noise
        return F.mse_loss(model(mixed if noisy else pictures), noise)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(torch.rand(20, 8, 1, 8, 8)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "max_steps": 20,
    }


def sick():
    return recipe(noisy=False)


def healthy():
    return recipe(noisy=True)
