"""A forger and an expert, each with an optimizer; the forger's holds the expert as well."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(honest):
    torch.manual_seed(0)
    forger = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
    expert = nn.Sequential(nn.Linear(2, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
    both = nn.ModuleDict({"forger": forger, "expert": expert})
    held = forger.parameters() if honest else both.parameters()
    forging = torch.optim.Adam(held, lr=1e-3, betas=(0.5, 0.9))
    judging = torch.optim.Adam(expert.parameters(), lr=1e-3, betas=(0.5, 0.9))

    def judged(pictures, real):
        said = expert(pictures)
        return F.binary_cross_entropy_with_logits(said, torch.full_like(said, float(real)))

    def train_step(model, batch):
        forged = forger(torch.randn(len(batch), 4, device=batch.device))
        judging.zero_grad()
        loss = judged(batch, True) + judged(forged.detach(), False)
        loss.backward()
        judging.step()
        forging.zero_grad()
        judged(forged, True).backward()
        forging.step()
        return loss

    return {
        "model": both,
        "train_step": train_step,
        "data": list(torch.randn(40, 32, 2)),
        "optimizer": [forging, judging],
        "max_steps": 200,
    }


def sick():
    return recipe(honest=False)


def healthy():
    return recipe(honest=True)
