"""Bounds of a ratio: the careful one of two terms, in all ways that it is written, and the bold
one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND675"
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def codes(
    loss_of: Loss, *, rate: float = 0.02, maximize: bool = False, start: float = 1.0
) -> set[str]:
    """`start` is what backward is given."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 4))
    seen = torch.randn(256, 5)
    with torch.no_grad():
        acting = Categorical(logits=policy(seen))
        acts = acting.sample()
        before = acting.log_prob(acts)
    gain = seen.gather(1, acts[:, None])[:, 0]
    gain = (gain - gain.mean()) / gain.std()

    optimizer = torch.optim.SGD(policy.parameters(), rate, maximize=maximize)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        state, act, old, gained = batch
        loss = loss_of((Categorical(logits=model(state)).log_prob(act) - old).exp(), gained)
        optimizer.zero_grad()
        loss.backward(torch.tensor(start))
        optimizer.step()
        return loss

    recipe = Recipe(
        model=policy,
        train_step=train_step,
        optimizer=optimizer,
        data=[(seen[i], acts[i], before[i], gain[i]) for i in torch.arange(256).split(32)] * 3,
    )
    return {finding.code for finding in diagnose(recipe, 24)}


def smaller(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()


def larger(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return torch.max(gain * ratio, gain * torch.clamp(ratio, 0.8, 1.2)).mean()


def smaller_of_a_stack(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return torch.stack([gain * ratio, gain * ratio.clip(min=0.8, max=1.2)]).min(0).values.mean()


def larger_loss(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return torch.max(-gain * ratio, -gain * ratio.clamp(0.8, 1.2)).mean()


def with_a_bound_for_losses(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    careful = torch.min(gain * ratio, gain * ratio.clamp(0.8, 1.2))
    return -torch.where(gain < 0, torch.max(careful, 3 * gain), careful).mean()


def with_divergence(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return -smaller(ratio, gain) + (ratio - 1 - ratio.log()).mean()


def with_another_weight(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """A cost that the bounds have no part in, as in constrained policies."""
    return -smaller(ratio, gain) + 0.5 * (ratio * gain.flip(0)).mean()


def without_a_choice(ratio: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return -(gain * ratio).mean() - 0.1 * ratio.clamp(0.8, 1.2).mean()


HEALTHY: dict[str, Loss] = {
    "smaller": lambda r, g: -smaller(r, g),
    "smaller of a stack": lambda r, g: -smaller_of_a_stack(r, g),
    "larger loss": larger_loss,
    "a bound for losses": with_a_bound_for_losses,
    "with a divergence": with_divergence,
    "another weight": with_another_weight,
    "no choice": without_a_choice,
}
SICK: dict[str, Loss] = {
    "larger": lambda r, g: -larger(r, g),
    "wrong sign": smaller,
    "wrong sign of a stack": smaller_of_a_stack,
}


@pytest.mark.parametrize("way", HEALTHY)
@pytest.mark.parametrize("rate", [0.02, 5.0])
def test_the_careful_one_is_left_alone(way: str, rate: float) -> None:
    """Also at a rate at which most ratios leave their bounds."""
    assert CODE not in codes(HEALTHY[way], rate=rate)


@pytest.mark.parametrize("way", SICK)
@pytest.mark.parametrize("rate", [1e-6, 2.0])
def test_the_bold_one_is_told(way: str, rate: float) -> None:
    """Also where no ratio has left its bounds yet."""
    assert CODE in codes(SICK[way], rate=rate)


def test_an_optimizer_that_climbs() -> None:
    assert CODE not in codes(smaller, maximize=True)
    assert CODE in codes(larger, maximize=True)


def test_a_backward_with_a_gradient_of_its_own() -> None:
    assert CODE not in codes(smaller, start=-1.0)
    assert CODE in codes(larger, start=-1.0)
