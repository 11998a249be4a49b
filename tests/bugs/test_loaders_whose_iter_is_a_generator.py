"""A DataLoader whose __iter__ is a generator, as Accelerate's are, crashed the run in our own frame,
and the report blamed the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from tests.helpers import run_engine


class Ahead(DataLoader[Any]):
    """Draws one batch ahead, to know which is the last."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        batch = next(batches)
        for following in batches:
            yield batch
            batch = following
        yield batch


def test_its_batches_are_trained_on() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(12, 3), torch.randint(0, 2, (12,)))
    recipe = Recipe(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        data=Ahead(data, batch_size=4),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    outcome = run_engine(recipe, steps=5)
    assert outcome.evidence.failure is None
    assert outcome.steps_run == 5
