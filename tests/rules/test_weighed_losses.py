"""Losses whose size is no business of theirs: rewards and advantages weigh them; what a flow scales
is its own input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.facts.course import is_weighed
from tests.helpers import run_engine

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
SEEN, GAINS, TARGETS = torch.randn(64, 4), torch.randn(64), torch.randn(64, 2)


def weighed(loss_of: Loss) -> bool:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(
        model=model, train_step=train_step, optimizer=optimizer, data=list(torch.randn(12, 64, 4))
    )
    inspection = run_engine(recipe, 12).evidence.inspection
    assert inspection is not None
    return is_weighed(inspection.calls)


def gains_of_the_same_rows(model: Any, batch: torch.Tensor) -> torch.Tensor:
    rows = torch.randperm(64)[:16]
    return -(model(SEEN[rows]).log_softmax(1)[:, 0] * GAINS[rows]).mean()


def gains_beside_what_a_critic_says(model: Any, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        gains = GAINS[:16] - model(SEEN[:16])[:, 1]
    return -(model(SEEN[:16]).log_softmax(1)[:, 0] * gains).mean()


def an_input_that_is_scaled(model: Any, batch: torch.Tensor) -> torch.Tensor:
    scale, shift = model(batch * torch.tensor([1.0, 1.0, 0.0, 0.0])).chunk(2, dim=1)
    return (batch[:, 2:3] * scale.exp() + shift).square().mean() - scale.mean()


def a_plain_error(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model(SEEN) - TARGETS).square().mean()


@pytest.mark.parametrize(
    ("loss_of", "found"),
    [
        (gains_of_the_same_rows, True),
        (gains_beside_what_a_critic_says, True),
        (an_input_that_is_scaled, False),
        (a_plain_error, False),
    ],
)
def test_what_weighs_a_loss(loss_of: Loss, found: bool) -> None:
    assert weighed(loss_of) is found
