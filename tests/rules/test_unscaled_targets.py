"""Targets of another scale than the predictions, and what only looks so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def codes(scale: float, *, lr: float = 1e-3, steps: int = 60, learns: bool = False) -> set[str]:
    torch.manual_seed(0)
    x = torch.randn(steps, 16, 6)
    target = x.sum(-1, keepdim=True) * scale
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=lr),
        loss_fn=lambda model, b: F.mse_loss(model(b[0]) * (scale if learns else 1.0), b[1]),
        data=list(zip(x, target, strict=True)),
    )
    return {finding.code for finding in diagnose(recipe, steps)}


def test_targets_in_other_units() -> None:
    assert "ND645" in codes(scale=1e4)


@pytest.mark.parametrize(
    "healthy",
    [
        {"scale": 0.1, "lr": 1e-6},  # slow, but of one scale
        {"scale": 5.0, "lr": 1e-5},  # ages, and a warm-up
        {"scale": 1e4, "learns": True},  # scaled back before the loss
        {"scale": 1e4, "steps": 30},  # too early to tell
    ],
)
def test_what_only_looks_so(healthy: dict[str, float]) -> None:
    assert "ND645" not in codes(**healthy)  # type: ignore[arg-type]
