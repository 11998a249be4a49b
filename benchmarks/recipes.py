"""The trainings that are measured: a model, one batch, a loss, an optimizer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.internals import Recipe
from benchmarks.models import GPT, ConvNet, Recurrent, Residual, many_tensors, mlp

Batch = tuple[torch.Tensor, torch.Tensor]

SMALL = {"mlp-0.5ms": (5, 64, 32), "mlp-2ms": (5, 256, 64), "mlp-5ms": (5, 512, 128)}
"""(layers, width, batch) of steps that take about so long on one core of a CPU."""
MODELS = ("gpt", "conv", "lstm", "gpt-amp", *SMALL, "3000-tensors")


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
    torch.manual_seed(0)
    model: nn.Module
    if name == "gpt-amp" and device.type == "cpu":
        # float16 is slow there: two layers of 128, 4×32 tokens
        model = GPT(width=128, layers=2, vocab=256, context=32)
        x, y = torch.randint(0, 256, (4, 32)), torch.randint(0, 256, (4, 32))
    elif name in ("gpt", "gpt-amp"):
        model = GPT()
        x, y = torch.randint(0, 512, (8, 64)), torch.randint(0, 512, (8, 64))
    elif name == "conv":
        model = ConvNet()
        x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    elif name in SMALL:
        layers, width, size = SMALL[name]
        model = mlp(width, layers)
        x, y = torch.randn(size, width), torch.randint(0, 10, (size,))
    elif name == "3000-tensors":
        model = many_tensors(1499)
        x, y = torch.randn(8, 8), torch.randint(0, 10, (8,))
    else:
        model = Recurrent()
        x, y = torch.randn(32, 64, 64), torch.randint(0, 10, (32,))
    model.to(device)
    scaler = torch.amp.GradScaler(device.type) if name == "gpt-amp" else None
    return Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[(x.to(device), y.to(device))],
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
