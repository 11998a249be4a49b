"""Targets of Q-learning that read the next state only where it should not be: by the transitions
themselves, whatever their flags are called."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND137"
Target = Callable[[SimpleNamespace, torch.Tensor], torch.Tensor]


def walked(count: int) -> list[tuple[torch.Tensor, int, float, torch.Tensor, float]]:
    """Transitions of a walk on a line, which ends on either side."""
    drawn, found, state = random.Random(0), [], torch.zeros(3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        action = drawn.randrange(2)
        after = state + torch.tensor([0.6 * action - 0.3, 0.0, 0.1])
        after = after + 0.05 * torch.randn(3, generator=generator)
        over = bool(after[0].abs() > 1.0)
        found.append((state, action, float(after[0]), after, float(over)))
        state = torch.zeros(3) + 0.01 * torch.randn(3, generator=generator) if over else after
    return found


def codes(target: Target, store: str = "tuples", *, one_for_all: bool = False) -> set[str]:
    torch.manual_seed(0)
    drawn = random.Random(1)
    steps = walked(600)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    arrays = SimpleNamespace(
        states=np.stack([s[0].numpy() for s in steps]),
        following=np.stack([s[3].numpy() for s in steps]),
    )
    kept: Any = {
        "tuples": deque(steps),
        "dicts": [{"s": s[0], "n": s[3]} for s in steps],
        "arrays": arrays,
        "nothing": None,
    }[store]

    data = [[steps[i] for i in drawn.sample(range(600), 32)] for _ in range(12)]
    del steps, arrays

    def train_step(model: nn.Module, rows: list[Any]) -> torch.Tensor:
        memory = kept
        state, after = torch.stack([r[0] for r in rows]), torch.stack([r[3] for r in rows])
        action = torch.tensor([r[1] for r in rows])
        x = SimpleNamespace(
            r=torch.tensor([r[2] for r in rows]), z=torch.tensor([r[4] for r in rows])
        )
        with torch.no_grad():
            said = model(after)
            wanted = target(x, said.max() if one_for_all else said.max(1).values)
        loss = F.mse_loss(model(state).gather(1, action[:, None])[:, 0], wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del memory
        return loss

    recipe = Recipe(model=model, train_step=train_step, optimizer=optimizer, data=data)
    del data
    return {finding.code for finding in diagnose(recipe, 12)}


def where_it_ends(x: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    return x.r + 0.9 * best * x.z


def where_it_goes_on(x: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    return x.r + 0.9 * best * (1 - x.z)


def turned_first(x: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    done = 1 - x.z  # a name that says the opposite
    return x.r + 0.9 * best * done


def everywhere(x: SimpleNamespace, best: torch.Tensor) -> torch.Tensor:
    return x.r + 0.9 * best


@pytest.mark.parametrize("store", ["tuples", "dicts", "arrays"])
def test_the_value_is_read_only_where_an_episode_ends(store: str) -> None:
    assert CODE in codes(where_it_ends, store)


@pytest.mark.parametrize("target", [where_it_goes_on, turned_first, everywhere])
def test_a_value_that_is_read_where_the_episode_goes_on(target: Target) -> None:
    assert CODE not in codes(target)


def test_without_a_store_too_little_is_known() -> None:
    assert CODE not in codes(where_it_ends, "nothing")


def test_one_value_for_all_samples() -> None:
    found = codes(where_it_goes_on, one_for_all=True)
    assert "ND174" in found
    assert CODE not in found
    assert "ND174" not in codes(where_it_goes_on) | codes(where_it_ends)
