"""A train_step of the user's may let another thread call its optimizer. Where the step was over while nanodoc read its
vital signs there, an AttributeError of nanodoc's own came out of the user's `optimizer.step()`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.replay.observer import Observer
from nanodoc.replay.step_state import StateKeeper


def test_the_optimizer_steps() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(8, 4)

    def train_step(*_: Any) -> None:
        model(batch).mean().backward()

    recipe = Recipe(model=model, optimizer=optimizer, data=[batch], train_step=train_step)
    start = StateKeeper(recipe, torch.device("cpu")).take(0, [batch])
    observer = Observer(recipe, list(model.named_parameters()), expected_steps=2).watch(start)
    before = model.weight.detach().clone()

    def over() -> list[torch.Tensor]:
        observer.__exit__(None, None, None)
        return []

    with torch.enable_grad():
        observer.__enter__()
        train_step()
        observer.extras = over
        optimizer.step()
    assert start.weights is not None
    assert not torch.equal(model.weight, before)
