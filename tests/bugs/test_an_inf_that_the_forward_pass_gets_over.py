"""An inf of the batch that a gate or tanh makes finite again shows as NaN in the backward pass: the op
there was blamed, and not the data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def found(value: float) -> list[tuple[str, str | None]]:
    torch.manual_seed(0)
    x = torch.randn(4, 16, 8, 3)
    x[2, 5, 3, 1] = value
    model = nn.GRU(3, 8, batch_first=True)

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(batch * 2)[0][:, -1], torch.zeros(16, 8))

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recipe = Recipe(model=model, loss_fn=loss_fn, data=list(x), optimizer=optimizer)
    return [(f.name, f.culprit.batch_path) for f in diagnose(recipe, 4)]


def test_the_data_are_told() -> None:
    assert found(float("inf"))[0] == ("non-finite-input", "batch")
    assert found(0.0) == []
