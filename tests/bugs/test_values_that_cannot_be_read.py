"""A number that is complex, or lies inside of vmap, ended the look at the last steps: all that is told
of them was not checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from nanodoc import Recipe, examine


def of_complex(model: Any, batch: Any) -> torch.Tensor:
    return torch.fft.fft(model(batch)).sum().abs()


def of_samples(model: Any, batch: Any) -> torch.Tensor:
    weights = dict(model.named_parameters())

    def loss(weights: Any, x: torch.Tensor) -> torch.Tensor:
        out = functional_call(model, weights, (x,))
        return ((out - out.detach()) ** 2).mean() + out.sum()

    each = vmap(grad(loss), in_dims=(None, 0))(weights, batch)
    return model(batch).pow(2).mean() + 0 * sum(g.detach().sum() for g in each.values())


@pytest.mark.parametrize("loss_fn", [of_complex, of_samples])
def test_the_rest_is_looked_at(loss_fn: Any) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        data=list(torch.randn(10, 8, 4)),
    )
    report = examine(recipe, steps=10)
    assert not [note for note in report.not_checked if "run again" in str(note)]
