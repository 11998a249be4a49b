"""Targets that no cosine similarity can reach."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize(("scale", "expected"), [(5.0, True), (1.0, False)])
def test_similarities(scale: float, expected: bool) -> None:
    torch.manual_seed(0)
    drawn = torch.Generator().manual_seed(0)
    data = [
        (
            torch.randn(16, 6, generator=drawn),
            torch.randn(16, 6, generator=drawn),
            scale * torch.linspace(0, 1, 16),
        )
        for _ in range(4)
    ]
    model = nn.Linear(6, 4)

    def loss_fn(model: Any, batch: Any) -> Any:
        similar = torch.cosine_similarity(model(batch[0]), model(batch[1]))
        return nn.functional.mse_loss(similar, batch[2])

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    recipe = Recipe(model=model, data=data, loss_fn=loss_fn, optimizer=optimizer)
    found = [f for f in diagnose(recipe, 12) if f.name == "unreachable-target"]
    assert bool(found) == expected
    if expected:
        assert found[0].title == "cosine_similarity on the output cannot reach 75% of the targets"
