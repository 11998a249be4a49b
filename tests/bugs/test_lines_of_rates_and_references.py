"""A rate that the training's own function brings to nothing has the line that gives it; a reference
that is the model itself has the line that names it so."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def rate_of(step: int) -> float:
    if step < 40:
        return 1e-2 * ((step + 1) // 41)  # whole numbers
    return 1e-2


def test_a_warm_up_in_whole_numbers() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    at = {"step": 0}

    def train_step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        for group in optimizer.param_groups:
            group["lr"] = rate_of(at["step"])
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        at["step"] += 1
        return loss

    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        train_step=train_step,
        data=[(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(30)],
    )
    finding = next(f for f in diagnose(recipe, 30) if f.code == "ND609")
    assert finding.culprit.location is not None
    assert "# whole numbers" in finding.culprit.location.code


def test_a_reference_that_is_the_model() -> None:
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    reference = policy  # and no copy

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            before = reference(x)
        return -F.logsigmoid(model(x) - before).mean()

    recipe = Recipe(
        model=policy,
        optimizer=torch.optim.Adam(policy.parameters(), lr=1e-3),
        loss_fn=loss_fn,
        data=[torch.randn(8, 4) for _ in range(20)],
    )
    finding = next(f for f in diagnose(recipe, 20) if f.code == "ND639")
    assert finding.culprit.location is not None
    assert "# and no copy" in finding.culprit.location.code
