"""The line that gives the highest learning rate, of functions that are asked for it again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanodoc.examination.raised_rate import raised_at, returned_from
from nanodoc.recipe.recipe import Recipe
from tests.helpers import line_of, nanodoc, python

COUNTED: list[int] = []


def rising(step: int) -> float:
    if step > 50:
        return 0.5
    return (step + 1) / 5


def counting(step: int) -> float:
    COUNTED.append(step)
    return (step + 1) / 5


def capped(step: int) -> float:
    return min(1.0, (step + 1) / 5)


@pytest.mark.parametrize(
    ("function", "line"),
    [(rising, "return (step + 1) / 5"), (counting, None), (capped, None), (lambda n: n + 1.0, "")],
)
def test_the_line(function: Any, line: str | None) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, function)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    before = list(COUNTED)
    recipe: Any = SimpleNamespace(train_step=None)
    found = raised_at(recipe, rates, 0.1, [schedule])
    assert before == COUNTED  # one that keeps something is not asked
    assert (found is not None) == (line is not None)
    if found is not None and line:
        assert found.code == line


def noam(step: int) -> float:
    return 0.02 * max((step + 1) ** -0.5, (step + 1) * 0.01)


def test_a_nominal_rate_whose_function_gives_all_of_them() -> None:
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: noam(step))
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    recipe: Any = SimpleNamespace(train_step=None)
    found = raised_at(recipe, rates, 1.0, [schedule])
    assert found is not None  # of the function that the lambda only hands on
    assert found.code == "return 0.02 * max((step + 1) ** -0.5, (step + 1) * 0.01)"


FALLING_AND_RISING = [8.0, 1.0, 2.0, 4.0, 4.5]


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        (FALLING_AND_RISING, True),
        ([*FALLING_AND_RISING, 0.5], False),  # a restart, or the end of a wave
        (sorted(FALLING_AND_RISING), False),
        (sorted(FALLING_AND_RISING, reverse=True) * 2, False),
    ],
)
def test_a_rate_that_rises_again(levels: list[float], told: bool) -> None:
    highest = max(levels)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1 * highest)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: levels[min(step // 5, len(levels) - 1)] / highest
    )
    rates = []
    for _ in range(5 * len(levels)):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    recipe: Any = SimpleNamespace(train_step=None)
    found = raised_at(recipe, rates, 0.1 * highest, [schedule])
    assert (found is not None) == told
    if found is not None:
        assert "levels[min(step // 5" in found.code


def test_what_a_function_returns_and_where() -> None:
    value, line = returned_from(rising, (60,))
    assert value == 0.5
    assert line is not None
    assert line.code == "return 0.5"


SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8))
optimizer = torch.optim.AdamW(
    [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.01
)


def rate_of(step):
    if step < 40:
        return 0.03 * (step + 1)
    return 0.9


for step in range(120):
    rate = rate_of(step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    x = torch.randn(32, 8)
    loss = F.mse_loss(model(x), x.flip(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""


@pytest.mark.parametrize("rate", ["rate_of(step)", "rate_of(step) if True else 0.01"])
def test_a_rate_that_a_script_sets_by_a_function_of_its_own(tmp_path: Path, rate: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("rate = rate_of(step)", f"rate = {rate}"))
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
    assert "ND606" in done.stderr or "ND609" in done.stderr
    assert f"--> train.py:{line_of(script, 'return 0.03 * (step + 1)')}:" in done.stderr


def test_recipes_have_no_loop_of_their_own() -> None:
    recipe = Recipe(
        model=torch.nn.Linear(2, 2),
        loss_fn=lambda model, batch: model(batch).sum(),
        data=[torch.ones(1, 2)],
        optimizer=None,
    )
    assert raised_at(recipe, [1.0, 2.0], 1.0, []) is None
