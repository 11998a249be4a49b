"""The trainings that are measured: a model, one batch, a loss, an optimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.internals import Recipe
from benchmarks.models import SMALL, Residual, made

Batch = tuple[torch.Tensor, torch.Tensor]

LARGE = "500mb-adam"
"""Its memory is measured, and not its time: a step takes half a second."""
MODELS = ("gpt", "conv", "lstm", "gpt-amp", *SMALL, "3000-tensors", "20000-modules", LARGE, "sac")


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def own_step(
    model: nn.Module, batch: Batch, optimizer: torch.optim.Optimizer, scaler: Any
) -> torch.Tensor:
    """A mixed-precision step as users write it."""
    optimizer.zero_grad()
    with torch.autocast(batch[0].device.type, dtype=torch.float16):
        loss = loss_fn(model, batch)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss


def recipe(name: str, device: torch.device) -> Recipe:
    """One of MODELS with its batch, on `device`."""
    model, x, y = made(name, device)
    scaler = torch.amp.GradScaler(device.type) if name == "gpt-amp" else None
    return Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[(x, y)],
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4),
        scaler=scaler,
    )


def deep(layers: int, device: torch.device) -> Recipe:
    """`layers` residual layers of width 64 whose weights stay: its gradient flow is followed."""
    model = nn.Sequential(*(Residual(64) for _ in range(layers))).to(device)
    batch = (torch.randn(32, 64, device=device), torch.randn(32, 64, device=device))
    return Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=[batch],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
    )
