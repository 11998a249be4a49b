"""A loss that is halved looked like a part of a mean over micro-batches, so that an optimizer that
never stepped, in hundreds of steps, was expected to step yet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe, examine


@pytest.mark.parametrize(("steps", "found"), [(300, True), (40, False)])
def test_no_optimizer_ever_steps(steps: int, found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        optimizer.zero_grad()
        loss = 0.5 * ((model(x) - y).square().mean() + model(x).square().mean())
        loss.backward()
        return loss

    data = [(torch.randn(8, 4), torch.randn(8, 1))] * steps
    recipe = Recipe(model=model, train_step=train_step, optimizer=optimizer, data=data)
    codes = [one.code for one in examine(recipe, steps=steps).findings]
    assert ("ND628" in codes) is found
