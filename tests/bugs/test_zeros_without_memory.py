"""The second backward of `abs` makes zeros that have no memory; reading them below autograd ended
the process."""

from __future__ import annotations

import torch
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


class Spoiled(nn.Module):
    """The derivative of its square root is infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x + (x - x.detach()).abs().sqrt()


def test_a_gradient_penalty_is_traced() -> None:
    torch.manual_seed(0)
    model = Spoiled()

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        mixed = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(mixed).sum(), mixed, create_graph=True)
        return ((slope.norm(2, 1) - 1) ** 2).mean() + model(batch).mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recipe = Recipe(model=model, loss_fn=loss_fn, data=[torch.randn(4, 6)], optimizer=optimizer)
    found = diagnose(recipe)[0]
    assert found.name == "infinite-gradient"
