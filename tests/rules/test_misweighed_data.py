"""Variational objectives that are told how many samples there are. gpytorch is no dependency: what
stands in for its objective says that it is of that library."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from tests.helpers import diagnose


class VariationalELBO(nn.Module):
    __module__ = "gpytorch.mlls.variational_elbo"

    def __init__(self, num_data: int) -> None:
        super().__init__()
        self.num_data = num_data

    def forward(
        self, output: torch.Tensor, target: torch.Tensor, prior: torch.Tensor
    ) -> torch.Tensor:
        fits: torch.Tensor = -((output - target) ** 2).mean()
        return fits - prior / self.num_data


@pytest.mark.parametrize(("told", "found"), [(16, True), (100, True), (320, False), (300, False)])
def test_the_number_of_samples(told: int, found: bool) -> None:
    torch.manual_seed(0)
    model, objective = nn.Linear(4, 1), VariationalELBO(told)
    x = torch.randn(320, 4)

    def loss_fn(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        prior = sum((p**2).sum() for p in model.parameters())
        loss: torch.Tensor = -objective(model(batch[0]), batch[1], prior)
        return loss

    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        loss_fn=loss_fn,
        data=DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16),
    )
    told_of = [f.title for f in diagnose(recipe, 8) if f.code == "ND656"]
    size = " (the batch size)" if told == 16 else ""
    title = f"VariationalELBO has num_data={told}{size}, but there are 320 samples"
    assert told_of == ([title] if found else [])
