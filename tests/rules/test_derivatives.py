"""A derivative with respect to the input, as a term of the loss: with a graph, without one, and where
none is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose


def _slope(model: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x).sum(), x, **options)[0]


def _equation(model: Any, x: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.mse_loss(model(x), x.sin()) + (_slope(model, x, **options) - x.cos()).square().mean()


def _attack(model: Any, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x + 0.01 * _slope(model, x).sign()), x.sin())


def _balanced(model: Any, x: torch.Tensor) -> torch.Tensor:
    first, second = F.mse_loss(model(x), x.sin()), F.l1_loss(model(x), x.sin())
    norms = [
        torch.autograd.grad(loss, model[-1].weight, retain_graph=True)[0].norm()
        for loss in (first, second)
    ]
    return first + norms[0] / norms[1] * second


@pytest.mark.parametrize(
    ("loss_fn", "sick"),
    [
        (lambda model, x: _equation(model, x, retain_graph=True), True),
        (lambda model, x: _equation(model, x, create_graph=True), False),
        (_attack, False),
        (_balanced, False),
    ],
)
def test_it_needs_a_graph_of_its_own(loss_fn: Any, sick: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
    recipe = Recipe(
        model=model,
        data=[torch.rand(16, 1) for _ in range(8)],
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters()),
    )
    titles = [f.title for f in diagnose(recipe, 6) if f.severity != "info"]
    assert any("derivative" in title for title in titles) is sick, titles
