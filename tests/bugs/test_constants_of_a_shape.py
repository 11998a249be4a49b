"""A constant made in the shape of a tensor (new_zeros, full_like) was taken for a term that depends
on that tensor's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


def codes_of(term: Callable[[torch.Tensor], torch.Tensor]) -> list[str]:
    model = nn.Linear(3, 2)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m(b).pow(2).mean() + term(m(b)),
        data=[torch.randn(4, 3) for _ in range(3)],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )
    return [finding.code for finding in diagnose(recipe, steps=3)]


@pytest.mark.parametrize(
    "constant",
    [
        lambda out: out.new_zeros(()),
        lambda out: out.new_full((), 0.5),
        lambda out: torch.ones_like(out).sum(),
        lambda out: torch.full_like(out[0, 0], 2.0) * 0.1,
        lambda out: out.new_tensor(1.0),
    ],
)
def test_a_constant_carries_no_gradient_and_need_not(
    constant: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    assert codes_of(constant) == []


def test_a_sum_that_begins_with_a_constant_is_still_followed() -> None:
    assert codes_of(lambda out: out.new_zeros(()) + (out > 0).float().mean()) == ["ND501"]
