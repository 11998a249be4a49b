"""Segmentation loss averaged over foreground pixels, and a tile without any."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(guarded):
    torch.manual_seed(0)
    model = nn.Conv2d(2, 1, 3, padding=1)
    images = torch.randn(24, 2, 8, 8)
    masks = (torch.rand(24, 1, 8, 8) > 0.6).float()
    masks[16:20] = 0.0  # four empty tiles, one whole batch

    def loss_fn(model, batch):
        image, mask = batch
        error = F.binary_cross_entropy_with_logits(model(image), mask, reduction="none")
        foreground = mask.sum()
        if guarded:
            foreground = foreground.clamp(min=1)
        return (error * mask).sum() / foreground

    batches = [(images[i : i + 4], masks[i : i + 4]) for i in range(0, 24, 4)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_steps": 6,
    }


def sick():
    return recipe(guarded=False)


def healthy():
    return recipe(guarded=True)
