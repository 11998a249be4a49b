"""`filter` gives an iterator: the optimizer's constructor goes through it, and the clip gets nothing.
A clip of parameters without gradients, and one without a limit, are left alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize(
    ("how", "found"), [("used up", True), ("listed", False), ("measured", False)]
)
def test_what_the_clip_is_given(how: str, found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    parameters: Any = filter(lambda p: p.requires_grad, model.parameters())
    if how == "listed":
        parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    limit = math.inf if how == "measured" else 1.0

    def train_step(model: nn.Module, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        return loss

    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(8)]
    recipe = Recipe(model=model, optimizer=optimizer, train_step=train_step, data=data)
    titles = {f.title for f in diagnose(recipe, 8) if f.code == "ND624"}
    assert ("gradient clipping gets no parameters" in titles) == found
