"""Learning rates that rise: to the end of the training, or to the end of what was looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

from nanodoc import Recipe
from nanodoc.rules.learning.unfinished_warmup import check
from tests.helpers import line_of, nanodoc, run_engine

Schedule = Callable[[torch.optim.Optimizer], Any]


def fires(schedule: Schedule, *, rate: float = 3e-3, own_length: bool = True) -> bool:
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch), (batch[:, 0] > 0).long()),
        data=list(torch.randn(10, 16, 8)),
        optimizer=optimizer,
        scheduler=schedule(optimizer),
        scheduler_interval="step",
    )
    evidence = replace(run_engine(recipe, 60).evidence, own_length=own_length)
    return bool(list(check.check(check, evidence)))


def rising_for(steps: int) -> Schedule:
    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / steps))


def cyclic(optimizer: torch.optim.Optimizer) -> Any:
    return lr_scheduler.CyclicLR(
        optimizer, base_lr=1e-5, max_lr=3e-3, step_size_up=5000, cycle_momentum=False
    )


def test_a_warmup_that_is_not_over() -> None:
    assert fires(rising_for(5000))


@pytest.mark.parametrize(
    "schedule",
    [
        rising_for(20),
        rising_for(100),  # more than half of the rate was reached
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 60),
        lambda optimizer: lr_scheduler.ConstantLR(optimizer, 1 / 100, 1000),  # it stands still
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=60),
        lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.3, total_iters=5000),
    ],
    ids=["over", "half", "cosine", "constant", "one cycle", "from a third"],
)
def test_other_schedules(schedule: Schedule) -> None:
    assert not fires(schedule)


def test_a_run_that_was_cut_short() -> None:
    assert not fires(rising_for(5000), own_length=False)


def test_a_rate_that_is_there_to_be_multiplied() -> None:
    """Noam's schedule gives rates: of 64 units and a warm-up of 400 steps, n / 64000."""

    def noam(optimizer: torch.optim.Optimizer) -> Any:
        return lr_scheduler.LambdaLR(
            optimizer, lambda n: 64**-0.5 * min((n + 1) ** -0.5, (n + 1) * 400**-1.5)
        )

    assert not fires(noam, rate=1.0)


def test_a_rate_that_no_scheduler_noted_and_that_is_the_default() -> None:
    """Nobody may have chosen it: groups are given theirs later."""

    def by_hand(optimizer: torch.optim.Optimizer) -> Any:
        for group in optimizer.param_groups:
            del group["initial_lr"]

    schedule = rising_for(5000)
    assert not fires(lambda optimizer: (schedule(optimizer), by_hand(optimizer))[0], rate=1e-3)


SCRIPT = """
import torch
import torch.nn.functional as F

MAX_STEPS, LEARNING_RATE = 80, 2e-3
warmup_iters = 4000

torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
for step in range(MAX_STEPS):
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / warmup_iters)
    x = torch.randn(16, 8)
    loss = F.cross_entropy(model(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_script_that_sets_its_rate_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert (
        "warning[ND652]: the warm-up of 4000 steps had reached 2.0% of the learning rate"
        in done.stderr
    )
    assert f"--> train.py:{line_of(file, 'warmup_iters = 4000')}:1" in done.stderr
    cut = nanodoc("run", "--steps", "60", "train.py", cwd=tmp_path)
    assert "ND652" not in cut.stderr
