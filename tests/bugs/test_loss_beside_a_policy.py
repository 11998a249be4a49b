"""A policy and its critic in one loss: the critic's targets are what the policy earns, so that the
sum may rise while both learn. A smaller rate, which earns less, was told as better."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.facts.course import has_fixed_targets
from tests.helpers import run_engine


def fixed(beside: str) -> bool:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        state, act, earned = batch
        out = model(state)
        loss = F.mse_loss(out[:, 3], earned)
        if beside == "policy":
            chosen = out[:, :3].log_softmax(1).gather(1, act[:, None])[:, 0]
            return loss - (chosen * (earned - out[:, 3].detach())).mean()
        if beside == "penalty":
            return loss + 0.1 * out.square().mean()
        if beside == "weights":
            return (F.mse_loss(out[:, 3], earned, reduction="none") * (earned > 0).float()).mean()
        return loss

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
        data=[(torch.randn(8, 4), torch.randint(3, (8,)), torch.randn(8)) for _ in range(4)],
    )
    return has_fixed_targets(run_engine(recipe, 4).evidence)


@pytest.mark.parametrize("beside", ["", "penalty", "weights"])
def test_targets_that_nothing_moves(beside: str) -> None:
    assert fixed(beside)


def test_what_a_policy_earns_is_no_fixed_target() -> None:
    assert not fixed("policy")
