"""Terms of which only the last is added to the loss, and loops that mean the last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe, examine

LossOf = Callable[[Any, torch.Tensor], torch.Tensor]


class Scaled(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        by = torch.tanh(self.layer(x))
        return x * by.exp(), by.sum(1)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.head = nn.Linear(4, 2)
        self.scaled = nn.ModuleList(Scaled(layer) for layer in self.layers)


def lost(loss_of: LossOf) -> str | None:
    """How severe that is."""
    torch.manual_seed(0)
    model = Layers()
    recipe = Recipe(
        model=model,
        loss_fn=loss_of,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-2),
        data=list(torch.randn(20, 16, 4)),
    )
    found = [one for one in examine(recipe, steps=20).findings if one.code == "ND683"]
    return found[0].severity if found else None


def last_penalty(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in model.layers:
        x = torch.tanh(layer(x))
        penalty = x.square().mean()
    return F.cross_entropy(model.head(x), (x[:, 0] > 0).long()) + 0.1 * penalty


def last_of_a_flow(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in model.scaled:
        x, scaled = layer(x)
    return (x.square().sum(1) - scaled).mean()


def all_of_a_flow(model: Any, x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(())
    for layer in model.scaled:
        x, scaled = layer(x)
        total = total + scaled
    return (x.square().sum(1) - total).mean()


def last_of_one_layer(model: Any, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x, scaled = model.scaled[0](x)
    return (x.square().sum(1) - scaled).mean()


def last_loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in model.layers:
        x = torch.tanh(layer(x))
        loss = (x.sum(1) - 1).square().mean()
    return loss


def all_penalties(model: Any, x: torch.Tensor) -> torch.Tensor:
    penalty = torch.zeros(())
    for layer in model.layers:
        x = torch.tanh(layer(x))
        penalty = penalty + x.square().mean()
    return F.cross_entropy(model.head(x), (x[:, 0] > 0).long()) + 0.1 * penalty


def many_to_one(model: Any, x: torch.Tensor) -> torch.Tensor:
    for layer in model.layers:
        x = torch.tanh(layer(x))
        said = model.head(x)[:, 0]
    return F.mse_loss(said, x[:, 1])


def the_worst(model: Any, x: torch.Tensor) -> torch.Tensor:
    found = []
    for layer in model.layers:
        x = torch.tanh(layer(x))
        found.append(x.square().mean())
    return torch.stack(found).max()


@pytest.mark.parametrize(
    ("loss_of", "found"),
    [
        (last_of_a_flow, "warning"),
        (last_of_one_layer, "info"),
        (last_penalty, "info"),
        (last_loss, "info"),
        (all_of_a_flow, None),
        (all_penalties, None),
        (many_to_one, None),
        (the_worst, None),
    ],
)
def test_values_that_are_lost(loss_of: LossOf, found: str | None) -> None:
    assert lost(loss_of) == found
