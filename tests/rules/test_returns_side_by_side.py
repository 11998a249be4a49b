"""ND635 of environments that run side by side: one loop makes all sums, so a file of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from nanodoc import Recipe, examine

T = 12


def turned_sums(rewards: torch.Tensor) -> list[torch.Tensor]:
    total, returns = torch.zeros(5), []
    for reward in rewards.flip(0):
        total = reward + 0.9 * total
        returns.append(total)
    return returns


def in_order(rewards: torch.Tensor) -> list[torch.Tensor]:
    return turned_sums(rewards)[::-1]


@pytest.mark.parametrize(("turned", "found"), [(True, ["ND635"]), (False, [])])
def test_environments_side_by_side(turned: bool, found: list[str]) -> None:
    """Each log-probability is one of several environments, and each step has a baseline."""
    torch.manual_seed(0)
    net = nn.Linear(1, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    rewards = torch.rand(T, 5)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        log_probs = []
        for t in range(T):
            chance = Categorical(logits=model(torch.full((5, 1), t / T)))
            log_probs.append(chance.log_prob(chance.sample()))
        returns = turned_sums(rewards) if turned else in_order(rewards)
        weights = torch.stack(returns)
        weights = (weights - weights.mean(1, keepdim=True)) / weights.std()
        optimizer.zero_grad()
        loss = -(torch.stack(log_probs) * weights).mean()
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(model=net, train_step=train_step, optimizer=optimizer, data=[0] * 12)
    codes = [finding.code for finding in examine(recipe, steps=10).findings]
    assert [code for code in codes if code in ("ND635", "ND636")] == found
