"""Tensors from outside of the step that it changes in place: by constants, and on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nanodoc import Recipe, examine


def told(way: str) -> list[str]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    kept, factor = torch.randn(4), torch.full((4,), 0.9)
    scalar, array = torch.tensor(2.0), np.ones(4, np.float32) * 255

    def train_step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        if way == "constant":
            kept.mul_(factor * 0.5)
        elif way == "operator":
            again = kept
            again /= 3
        elif way == "running mean":
            kept.mul_(0.9).add_(0.1 * batch.mean(0))
        elif way == "running mean in two lines":
            kept.mul_(0.9)
            kept.add_(batch.mean(0), alpha=0.1)
        elif way == "of the batch":
            kept.sub_(batch.mean(0))
        elif way == "noise":
            kept.add_(torch.randn(4))
        elif way == "temperature":
            scalar.mul_(0.99)
        elif way == "not read":
            torch.ones(4).mul_(2)
            factor.mul_(0.99)
        elif way == "a clock":
            kept.add_(0.1)
        elif way == "weights that fade":
            kept.mul_(0.99)
        elif way == "priorities":
            kept.mul_(0.5)
            kept[:2] = batch[0, :2]
        elif way == "an array":
            return trained(model, torch.from_numpy(array).div_(255), batch, optimizer)
        return trained(model, kept * scalar, batch, optimizer)

    def trained(model: Any, wanted: torch.Tensor, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = ((model(batch) - wanted) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(
        model=model,
        train_step=train_step,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data=list(torch.randn(12, 8, 4)),
    )
    return [f.code for f in examine(recipe, steps=10).findings if f.code == "ND638"]


@pytest.mark.parametrize("way", ["constant", "operator"])
def test_a_constant_is_changed_again(way: str) -> None:
    assert told(way) == ["ND638"]


@pytest.mark.parametrize(
    "way",
    [
        "running mean",
        "running mean in two lines",
        "of the batch",
        "noise",
        "temperature",
        "not read",
        "an array",
        "a clock",
        "weights that fade",
        "priorities",
        "nothing",
    ],
)
def test_what_is_meant_to_change(way: str) -> None:
    assert told(way) == []
