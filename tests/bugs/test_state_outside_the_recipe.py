"""A teacher in a closure, a scheduler in a train_step, a queue: they move with the run, and replays
must not find them moved.

"Another batch fails too" was said of batches that had passed, since the teacher had been poisoned
by the step that failed.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.ranking import rank
from nanodoc.rules.catalogue import claims
from tests.experiments.test_experiments import ready

BAD = 4


def batches() -> list[torch.Tensor]:
    torch.manual_seed(1)
    data = [torch.randn(6, 4) for _ in range(7)]
    data[BAD][2, 1] = float("nan")
    return data


def teacher() -> tuple[Recipe, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    outside = copy.deepcopy(model)

    def train_step(
        model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (model(batch) - outside(batch).detach()).pow(2).mean() + model(
            batch
        ).pow(2).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for own, other in zip(model.parameters(), outside.parameters(), strict=True):
                other.lerp_(own, 0.1)
        return loss

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Recipe(model=model, train_step=train_step, data=batches(), optimizer=optimizer), outside


def scheduled() -> tuple[Recipe, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=7)

    def train_step(
        model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer
    ) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    return Recipe(
        model=model, train_step=train_step, data=batches(), optimizer=optimizer
    ), scheduler


@pytest.mark.parametrize("make", [teacher, scheduled])
def test_the_rows_are_true(make: Any) -> None:
    recipe, _ = make()
    differential, evidence = ready(recipe, steps=7)
    evidence = differential.examine(evidence)
    assert evidence.pattern is not None
    assert evidence.pattern.passes("other-batch") is True
    (finding,) = differential.treat(rank(claims(evidence)))
    assert finding.cause == "data"
    assert finding.culprit.samples == (2,)
    assert finding.fixes[0].verified is True


def test_a_scheduler_is_put_back() -> None:
    recipe, scheduler = scheduled()
    differential, evidence = ready(recipe, steps=7)
    before = scheduler.last_epoch
    differential.treat(rank(claims(differential.examine(evidence))))
    assert scheduler.last_epoch == before


def test_what_cannot_be_put_back_is_said() -> None:
    """The poisoned rows were already in the queue when the step failed: no batch passes any more,
    and that says nothing of the op."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    queue: list[torch.Tensor] = []

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        queue.append(batch)
        return torch.stack([model(one).pow(2).mean() for one in queue]).mean()

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=batches(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )
    differential, evidence = ready(recipe, steps=7)
    evidence = differential.examine(evidence)
    assert evidence.pattern is not None
    assert evidence.pattern.cause is None
    assert any(
        "state that nanodoc can't restore has changed" in one.outcome
        for one in evidence.pattern.experiments
    )
    assert all(
        fix.verified is None
        for finding in differential.treat(rank(claims(evidence)))
        for fix in finding.fixes
    )
