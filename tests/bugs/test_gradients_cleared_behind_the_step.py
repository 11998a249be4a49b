"""A training that clears its gradients behind each optimizer step had none left when it was asked
which parameters receive gradients and are in no optimizer: it was healthy, and learnt nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize("held", [True, False])
def test_an_adapter_that_no_optimizer_holds(held: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.requires_grad_(False)
    model.append(nn.Linear(1, 1))
    if held:
        optimizer.add_param_group({"params": list(model[3].parameters())})

    def train_step(model: Any, batch: Any) -> Any:
        loss = nn.functional.mse_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss

    drawn = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(8, 4, generator=drawn), torch.randn(8, 1, generator=drawn)) for _ in range(4)
    ]
    recipe = Recipe(model=model, data=data, train_step=train_step, optimizer=optimizer)
    found = {f.name for f in diagnose(recipe, 12)}
    assert ("parameter-not-in-optimizer" in found) is not held
