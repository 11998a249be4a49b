"""Targets of Q-learning whose next states are the states; a sequence that both networks read whole
is left alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("one array", True),
        ("two arrays", False),
        ("a sequence", False),
        ("its copies", False),
        ("all end", False),
        ("some end", True),
        ("none end", True),
        ("no reward", True),
    ],
)
def test_states(how: str, found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        state, reward, after = batch
        if how in ("none end", "no reward"):  # zeros that take nothing of what comes after away
            with torch.no_grad():
                value = model(after).squeeze(1)
                if how == "none end":
                    target = reward + 0.9 * (value - value * torch.zeros(32))
                else:
                    target = 0.1 * torch.zeros(32) + 0.9 * value
            return F.mse_loss(model(state).squeeze(1), target)
        if how.endswith("end"):  # a mask that leaves nothing, or some, of what comes after
            ended = torch.ones(32) if how == "all end" else (state[:, 0] > 0).float()
            with torch.no_grad():
                target = reward + 0.9 * model(after).squeeze(1) * (1 - ended)
            return F.mse_loss(model(state).squeeze(1), target)
        if how in ("one array", "two arrays"):
            with torch.no_grad():
                target = reward + 0.9 * model(after).squeeze(1)
            return F.mse_loss(model(state).squeeze(1), target)
        sequences = (state.clone(), state.clone()) if how == "its copies" else (state, state)
        with torch.no_grad():
            target = reward[:-1] + 0.9 * model(sequences[0]).squeeze(1)[1:]
        return F.mse_loss(model(sequences[1]).squeeze(1)[:-1], target)

    data = []
    for _ in range(12):
        state = torch.randn(32, 3)
        after = (
            state.clone()
            if how.endswith(("one array", "end", "reward"))
            else state + 0.1 * torch.randn(32, 3)
        )
        data.append((state, torch.randn(32), after))
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
        loss_fn=loss_fn,
        data=data,
    )
    assert ("ND152" in {f.code for f in diagnose(recipe, 12)}) == found
