"""A classifier of blobs, and an average of its weights that is to be validated."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Shadow:
    def __init__(self, model, with_buffers):
        self.module = copy.deepcopy(model).eval()
        self.with_buffers = with_buffers

    @torch.no_grad()
    def follow(self, model):
        self.module.to(next(model.parameters()).device)
        for kept, new in zip(self.module.parameters(), model.parameters(), strict=True):
            kept.mul_(0.9).add_(new, alpha=0.1)
        if self.with_buffers:
            for kept, new in zip(self.module.buffers(), model.buffers(), strict=True):
                kept.copy_(new)


def recipe(with_buffers):
    torch.manual_seed(0)
    x = torch.randn(640, 8) + 3
    y = (x[:, 0] > x[:, 1]).long()
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    shadow = Shadow(model, with_buffers)

    def train_step(model, batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        shadow.follow(model)
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": list(zip(x.split(32), y.split(32), strict=True)),
        "optimizer": optimizer,
    }


def sick():
    return recipe(with_buffers=False)


def healthy():
    return recipe(with_buffers=True)
