"""Pairs and triplets whose labels, or places, are the other way round than their loss: told by what their inputs look
like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose


def embedding() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def found(loss_fn: Any, data: list[Any]) -> list[Finding]:
    model = embedding()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recipe = Recipe(model=model, loss_fn=loss_fn, data=data, optimizer=optimizer)
    return [f for f in diagnose(recipe, 12) if f.code == "ND156"]


def rows(kinds: torch.Tensor) -> torch.Tensor:
    return torch.eye(16)[kinds] + 0.1 * torch.randn(*kinds.shape, 16)


def pairs(*, other: bool) -> list[Any]:
    torch.manual_seed(0)
    kinds = torch.randint(0, 6, (2, 256))
    kinds[1, ::2] = kinds[0, ::2]
    same = kinds[0] == kinds[1]
    label = torch.where(~same if other else same, 1.0, -1.0)
    return list(zip(*(part.split(32) for part in (*rows(kinds), label)), strict=True))


@pytest.mark.parametrize("other", [True, False])
def test_cosines_of_pairs(other: bool) -> None:
    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cosine_embedding_loss(model(batch[0]), model(batch[1]), batch[2], margin=0.2)

    claims = found(loss_fn, pairs(other=other))
    assert bool(claims) == other
    if other:
        assert "label 1" in claims[0].title


@pytest.mark.parametrize("swapped", [True, False])
def test_triplets(swapped: bool) -> None:
    torch.manual_seed(0)
    kind = torch.randint(0, 6, (256,))
    away = (kind + torch.randint(1, 6, (256,))) % 6
    anchor, positive, negative = rows(torch.stack([kind, kind, away]))
    data = list(zip(*(part.split(32) for part in (anchor, positive, negative)), strict=True))

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        one, two, three = map(model, batch)
        near, far = (three, two) if swapped else (two, three)
        return F.triplet_margin_loss(one, near, far)

    claims = found(loss_fn, data)
    assert bool(claims) == swapped
    if swapped:
        assert claims[0].severity == "critical"
        assert "farther input" in claims[0].title


def test_labels_that_tell_nothing_of_the_inputs() -> None:
    """As where two views of one thing look as different as two things."""
    torch.manual_seed(0)
    data = [
        (torch.randn(32, 16), torch.randn(32, 16), torch.randint(0, 2, (32,)).float())
        for _ in range(8)
    ]

    def loss_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        distance = F.pairwise_distance(model(batch[0]), model(batch[1]))
        left = torch.relu(1.0 - distance)
        return (batch[2] * left.square() + (1 - batch[2]) * distance.square()).mean()

    assert found(loss_fn, data) == []
