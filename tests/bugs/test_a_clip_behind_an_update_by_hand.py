"""A loop that moves its weights by hand, without an optimizer, and clips behind that: nothing was
said of the clip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize("late", [True, False])
def test_the_clip_is_told(late: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def train_step(model: nn.Module, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        model.zero_grad()
        loss: torch.Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        if not late:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.05)
        if late:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        return loss

    recipe = Recipe(model=model, train_step=train_step, data=[torch.randn(8, 4) for _ in range(6)])
    codes = [finding.code for finding in diagnose(recipe, 6)]
    assert ("ND624" in codes) == late
