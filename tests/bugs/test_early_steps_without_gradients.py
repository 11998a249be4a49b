"""A train_step whose optimizer steps before there are any gradients, and again with them: the second
of the two kept no weights, so that a sick step was run again from the NaN that it had made, and the
optimizer was to blame for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.observer import Observer
from tests.bugs.test_optimizers_that_step_first import RECIPE, told

STEPS_FIRST = """
        optimizer.step()
        optimizer.zero_grad()
        x = x / x.norm(dim=1, keepdim=True)
        loss = (model(x) - y).square().mean()
        loss.backward()
"""
STEPS_TWICE = """
        optimizer.zero_grad()
        optimizer.step()
        out = model(x) + (model(x) - model.bias).square().sum(1, keepdim=True).sqrt()
        loss = (out - y).square().mean()
        loss.backward()
        optimizer.step()
"""


def test_the_line_is_the_square_roots(tmp_path: Path) -> None:
    assert STEPS_FIRST in RECIPE
    recipe = RECIPE.replace(STEPS_FIRST, STEPS_TWICE).replace("AT", "83")
    (tmp_path / "recipe.py").write_text(recipe)
    report, _ = told(tmp_path, "recipe.py:build", "--steps", "20")
    (found,) = report["findings"]
    assert (found["code"], found["step"]) == ("ND301", 10)
    assert found["culprit"]["location"]["line"] == 16
    assert any(fix["verified"] for fix in found["fixes"])


def test_no_gradients_are_left_by_an_optimizer_that_evaluates_its_loss_often() -> None:
    """They were copied before every step of LBFGS."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(8, 4)
    recipe = Recipe(model=model, optimizer=optimizer, data=[x], train_step=lambda *_: None)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    with Observer(recipe, list(model.named_parameters()), expected_steps=1) as observer:
        optimizer.step(closure)
    assert observer.evaluations > 1
    assert not observer.leaves_gradients
