"""Gradients that were never cleared and are clipped before each step were called clipped after the
step that had used them: the next backward had added to them, and that was not asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def test_it_is_the_clearing_that_lacks() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_step(model: nn.Module, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        loss: torch.Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    recipe = Recipe(
        model=model,
        train_step=train_step,
        data=[torch.randn(8, 4) for _ in range(6)],
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
    )
    assert [finding.code for finding in diagnose(recipe, 6)] == ["ND608"]
