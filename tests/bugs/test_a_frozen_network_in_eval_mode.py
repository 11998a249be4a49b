"""A frozen network in eval mode with a new head on it was told as "the model trains in eval mode":
its first batch norm is a child of the model itself, as the head is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.norm(self.stem(x))).mean((2, 3)))


@pytest.mark.parametrize("frozen", [True, False])
def test_only_what_learns_is_to_train(frozen: bool) -> None:
    torch.manual_seed(0)
    model = Network()
    if frozen:
        for part in (model.stem, model.norm):
            part.requires_grad_(False)
    model.eval()
    model.head.train()
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-2)
    x = torch.randn(12, 16, 1, 8, 8)
    data = list(zip(x, (x.mean((2, 3, 4)) > 0).long(), strict=True))

    def train_step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(model=model, train_step=train_step, optimizer=optimizer, data=data)
    assert ("ND613" in [found.code for found in diagnose(recipe, 12)]) == (not frozen)
