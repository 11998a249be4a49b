"""A train_step that looks at its loss and skips a bad batch is healthy; one that skips for ever is
not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import run_engine


def train_step(model: Any, batch: torch.Tensor, optimizer: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(batch).pow(2).mean()
    if not torch.isfinite(loss):
        return loss
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize(("bad", "trips"), [({3, 7}, False), (set(range(4, 20)), True)])
def test_skipping(bad: set[int], trips: bool) -> None:
    model = nn.Linear(2, 1)
    data = [torch.full((4, 2), float("nan")) if i in bad else torch.randn(4, 2) for i in range(20)]
    recipe = Recipe(
        model=model,
        train_step=train_step,
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    outcome = run_engine(recipe, steps=20)
    assert (outcome.evidence.trip is not None) is trips
    if trips:
        assert outcome.evidence.leaves[0].kind == "batch"
    else:
        assert outcome.skipped == len(bad)
        assert outcome.steps_run == 20
