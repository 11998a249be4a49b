"""With torch 2.10 a node of a custom function cannot be read once its graph is freed: the look at
the graph ended in an error of our own. One custom function after another is the harder case."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nanodoc.facts.graph import GraphFacts
from nanodoc.recipe.recipe import Recipe
from tests.helpers import run_engine


class Passing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2


class Forgetful(Passing):
    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> None:  # type: ignore[override]
        return None


class Quiet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:  # type: ignore[override]
        return None if grad is None else grad * 2


class Doubling(Passing):
    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.double()


class Net(nn.Module):
    def __init__(self, *functions: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.first, self.last, self.functions = nn.Linear(4, 4), nn.Linear(4, 1), functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for function in self.functions:
            x = function.apply(x)  # type: ignore[no-untyped-call]
        return self.last(x).square().mean()


def run(*functions: type[torch.autograd.Function]) -> GraphFacts | None:
    torch.manual_seed(0)
    model = Net(*functions)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: model(batch[0]),
        data=[(torch.randn(8, 4),)],
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
    )
    return run_engine(recipe, leak_check=False).evidence.graph


def test_what_was_lost_is_found_before_a_second_function() -> None:
    graph = run(Quiet, Forgetful)
    assert graph is not None
    found = {cut.returned_at.code: cut for cut in graph.cuts if cut.returned_at is not None}
    cut = found["return None"]
    assert (cut.kind, sorted(cut.orphans)) == ("custom-function", ["first.bias", "first.weight"])


def test_a_gradient_of_another_dtype_is_found() -> None:
    graph = run(Passing, Doubling, Passing)
    assert graph is not None
    (mismatch,) = graph.mismatches
    assert (mismatch.expected, mismatch.got) == ("[8, 4] float32", "[8, 4] float64")
