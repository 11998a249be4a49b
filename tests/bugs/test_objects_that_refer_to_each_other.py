"""Reference cycles in plain attributes of a module ended the run in a RecursionError of ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


class Logger:
    """A plain object that its child refers back to, as a trainer's loggers do."""


def recipe(stale: bool) -> Recipe:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    logger = Logger()
    logger.owner = Logger()  # type: ignore[attr-defined]
    logger.owner.child = logger  # type: ignore[attr-defined]
    model.logger = logger  # type: ignore[assignment]
    trained = nn.Linear(4, 2) if stale else model
    return Recipe(
        model=model,
        loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]),
        data=[(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(3)],
        optimizer=torch.optim.SGD(trained.parameters(), lr=0.1),
        max_steps=6,
    )


@pytest.mark.parametrize("stale", [False, True])
def test_the_run_is_judged(stale: bool) -> None:
    found = [finding.code for finding in diagnose(recipe(stale), steps=6)]
    assert (found[0] == "ND507") if stale else found == []
