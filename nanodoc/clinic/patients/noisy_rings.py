"""Points on two rings, to which noise is added that a network learns to tell."""

import torch
import torch.nn.functional as F
from torch import nn

LEVELS = 50


def recipe(draw):
    torch.manual_seed(0)
    angle = torch.rand(640) * 6.28
    radius = torch.where(torch.arange(640) % 2 == 0, 1.0, 2.0)
    points = torch.stack([angle.cos() * radius, angle.sin() * radius], 1)
    model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
    model.append(nn.Linear(64, 2))
    share = torch.linspace(0.999, 0.9, LEVELS).cumprod(0)

    def loss_fn(model, clean):
        noise = draw(clean)
        level = torch.randint(0, LEVELS, (len(clean),), device=clean.device)
        kept = share.to(clean.device)[level][:, None]
        noisy = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        told = model(torch.cat([noisy, level[:, None] / LEVELS], 1))
        return F.mse_loss(told, noise)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(points.split(64)),
        "optimizer": torch.optim.Adam(model.parameters(), 1e-3),
    }


def sick():
    return recipe(lambda clean: torch.rand_like(clean))


def healthy():
    return recipe(lambda clean: torch.randn_like(clean))
