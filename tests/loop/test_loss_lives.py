"""How long a step's loss lives, with the graph behind it: as long as in a plain loop. To free the
graph of thousands of small layers before the optimizer steps made that slower."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.loop.engine import Engine

STEPS = 60


class Held:
    """Whatever the graph holds."""


class Marked(torch.autograd.Function):
    held: weakref.ref[Held]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.held = Held()
        Marked.held = weakref.ref(ctx.held)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one gradient
        return grad * 2


class Asking(torch.optim.SGD):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.alive: list[bool] = []

    def step(self, closure: Any = None) -> Any:
        self.alive.append(Marked.held() is not None)
        return super().step(closure)


def test_until_the_optimizer_has_stepped() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = Asking(model.parameters(), lr=0.01)
    before: list[bool] = []

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if optimizer.alive:
            before.append(Marked.held() is not None)
        loss: torch.Tensor = Marked.apply(model(batch)).pow(2).mean()
        return loss

    recipe = Recipe(model=model, loss_fn=loss_fn, data=[torch.randn(6, 4)], optimizer=optimizer)
    Engine(recipe, torch.device("cpu"), None, steps=STEPS).run()
    assert optimizer.alive == [True] * STEPS
    assert not any(before[1:])  # the gradients of the first step are followed
