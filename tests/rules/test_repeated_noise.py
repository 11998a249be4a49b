"""Random numbers that are the same in every step; seeds that change, and generators that go on, are
left alone."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("the global seed in each step", True),
        ("a generator in each step", True),
        ("another seed in each step", False),
        ("a generator that goes on", False),
        ("no seed", False),
        ("what the loss is not made of", False),
        ("a seed, and nothing drawn", False),
        ("seeds beyond the exact numbers", False),
        ("a projection", False),
    ],
)
def test_noise(how: str, found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    numbers, kept = itertools.count(), torch.Generator().manual_seed(5)

    def drawn(like: torch.Tensor) -> torch.Tensor:
        if how == "the global seed in each step":
            torch.manual_seed(7)
        elif how == "another seed in each step":
            torch.manual_seed(next(numbers))
        elif how == "seeds beyond the exact numbers":
            torch.manual_seed((1 << 62) + next(numbers))
        elif how == "a generator in each step":
            return torch.randn(like.shape, generator=torch.Generator().manual_seed(7))
        elif how == "a generator that goes on":
            return torch.randn(like.shape, generator=kept)
        return torch.randn_like(like)

    def loss_fn(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if how == "a seed, and nothing drawn":
            torch.manual_seed(7)
            quiet = F.dropout(F.normalize(x), 0.5, training=False)
            return F.mse_loss(model(quiet), x)
        if how == "a projection":
            weights = torch.randn(8, 8, generator=torch.Generator().manual_seed(7)) * 3
            return F.mse_loss(model((x @ weights).sin()), x)
        if how == "what the loss is not made of":
            torch.randn(3, generator=torch.Generator().manual_seed(7)).sum()
        return F.mse_loss(model(x + drawn(x)), x)

    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        loss_fn=loss_fn,
        data=[torch.randn(16, 8) for _ in range(12)],
    )
    assert ("ND149" in {f.code for f in diagnose(recipe, 12)}) == found
