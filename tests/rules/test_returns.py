"""What a policy gradient weights the actions of an episode with: sums of the rewards to come, sums
of those that were, and what is neither."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Categorical, Independent, Normal

from nanodoc import Recipe, examine
from nanodoc.examination.discounted import order_of, sums

T = 12
PAID = [1.0] * T
UNEVEN = [float(t % 3) + 0.1 * t for t in range(T)]

Loss = Callable[[list[torch.Tensor], list[torch.Tensor], list[float]], torch.Tensor]


def to_go(rewards: list[float]) -> torch.Tensor:
    found: list[float] = []
    total = 0.0
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        found.insert(0, total)
    return torch.tensor(found)


def so_far(rewards: list[float]) -> torch.Tensor:
    found: list[float] = []
    total = 0.0
    for reward in rewards:
        total = reward + 0.95 * total
        found.append(total)
    return torch.tensor(found)


def normal(returns: torch.Tensor) -> torch.Tensor:
    return (returns - returns.mean()) / (returns.std() + 1e-7)


class World:
    """As Gymnasium's environments are."""

    action_space, observation_space = range(3), (1,)

    def reset(self) -> None: ...

    def step(self, action: Any) -> None: ...


def told(
    loss_of: Loss,
    paid: list[float],
    *,
    maximize: bool = False,
    flat: bool = False,
    name: str = "rewards",
    world: Any = None,
    loud: bool = False,
) -> list[str]:
    """`world`: an environment that the step reaches. `loud`: without infos."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, maximize=maximize)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        log_probs, values = [], []
        for t in range(T):
            out = model(torch.tensor([t / T]))
            chance: Any = Independent(Normal(out[:2], 1.0), 1) if flat else Categorical(logits=out)
            log_probs.append(chance.log_prob(chance.sample()))
            values.append(out[2])
        episode = SimpleNamespace(**{name: list(paid)}, world=world)
        optimizer.zero_grad()
        loss = loss_of(log_probs, values, list(vars(episode)[name]))
        loss.backward()
        optimizer.step()
        return loss

    recipe = Recipe(model=net, train_step=train_step, optimizer=optimizer, data=[0] * 12)
    found = examine(recipe, steps=10).findings
    codes = [finding.code for finding in found if not loud or finding.severity != "info"]
    return [code for code in codes if code in ("ND635", "ND636")]


def critic(targets: torch.Tensor, values: list[torch.Tensor]) -> torch.Tensor:
    pairs = zip(values, targets, strict=True)
    return torch.stack(
        [nn.functional.smooth_l1_loss(value, target) for value, target in pairs]
    ).sum()


SUMMED_FORWARDS: list[Loss] = [
    lambda log_probs, values, rewards: -(torch.stack(log_probs) * so_far(rewards)).sum(),
    lambda log_probs, values, rewards: (-torch.stack(log_probs) * normal(so_far(rewards))).mean(),
    lambda log_probs, values, rewards: torch.stack(
        [-lp * w for lp, w in zip(log_probs, so_far(rewards).tolist(), strict=True)]
    ).sum(),
    lambda log_probs, values, rewards: (
        nn.functional.mse_loss(torch.stack(values), normal(so_far(rewards)))
        - (torch.stack(log_probs) * (normal(so_far(rewards)) - torch.stack(values).detach())).sum()
    ),
]


def advantage(rewards: list[float], values: list[torch.Tensor]) -> torch.Tensor:
    return normal(to_go(rewards) - torch.stack(values)).detach()


def beside_a_critic(sign: float) -> Loss:
    """The weights are returns less what a critic says, which are no sums of rewards."""

    def loss(log_probs: Any, values: Any, rewards: list[float]) -> torch.Tensor:
        error = (torch.stack(values) - to_go(rewards)).pow(2).mean()
        return sign * (torch.stack(log_probs) * advantage(rewards, values)).mean() + error

    return loss


def test_the_error_of_a_critic_tells_the_sign() -> None:
    assert told(beside_a_critic(1.0), UNEVEN) == ["ND636"]
    assert told(beside_a_critic(-1.0), UNEVEN) == []
    assert told(beside_a_critic(-1.0), UNEVEN, maximize=True) == ["ND636"]


def test_sums_so_far_with_the_last_in_front() -> None:
    def loss(log_probs: Any, values: Any, rewards: list[float]) -> torch.Tensor:
        found: list[float] = []
        total = 0.0
        for reward in rewards:
            total = reward + 0.95 * total
            found.insert(0, total)
        return -(torch.stack(log_probs) * normal(torch.tensor(found))).mean()

    assert told(loss, UNEVEN) == ["ND635"]


@pytest.mark.parametrize("paid", [PAID, UNEVEN])
@pytest.mark.parametrize("loss", SUMMED_FORWARDS)
def test_what_was_before_an_action_is_its_weight(loss: Loss, paid: list[float]) -> None:
    assert told(loss, paid) == ["ND635"]


def test_continuous_actions() -> None:
    assert told(SUMMED_FORWARDS[1], UNEVEN, flat=True) == ["ND635"]


@pytest.mark.parametrize("paid", [PAID, UNEVEN])
@pytest.mark.parametrize(
    "loss",
    [
        lambda log_probs, values, rewards: (torch.stack(log_probs) * to_go(rewards)).sum(),
        lambda log_probs, values, rewards: (torch.stack(log_probs) * normal(to_go(rewards))).sum(),
    ],
)
def test_a_loss_that_falls_with_the_return(loss: Loss, paid: list[float]) -> None:
    assert told(loss, paid) == ["ND636"]
    assert told(loss, paid, maximize=True) == []


def test_costs_are_to_fall() -> None:
    def loss(log_probs: Any, values: Any, costs: list[float]) -> torch.Tensor:
        return (torch.stack(log_probs) * to_go(costs)).sum()

    for name in ("rewards", "costs", "delays"):
        assert told(loss, UNEVEN, name=name) == ["ND636"]
        assert told(loss, UNEVEN, name=name, loud=True) == []
    assert told(loss, UNEVEN, name="costs", world=World(), loud=True) == ["ND636"]


def test_only_finite_numbers_are_compared() -> None:
    weights = [0.3, -1.0, 2.0, 0.5, 1.1, -0.2, 0.9, 0.4]
    for other in (float("nan"), float("inf")):
        assert order_of(weights, [other] * 8) is None
        assert order_of(weights, [-other] * 3 + [0.0] * 5) is None
        assert order_of([other, *weights[1:]], weights) is None


def backwards(log_probs: Any, values: Any, rewards: list[float]) -> torch.Tensor:
    """The loop of A3C, from the last step to the first."""
    total, loss = torch.zeros(()), torch.zeros(())
    for i in reversed(range(T)):
        total = 0.9 * total + rewards[i]
        loss = loss + nn.functional.mse_loss(values[i], total)
        loss = loss - log_probs[i] * (total - values[i]).detach()
    return loss


HEALTHY: list[Loss] = [
    backwards,
    lambda log_probs, values, rewards: -(torch.stack(log_probs) * to_go(rewards)).sum(),
    lambda log_probs, values, rewards: -(torch.stack(log_probs) * normal(to_go(rewards))).sum(),
    lambda log_probs, values, rewards: -(torch.stack(log_probs) * (to_go(rewards) - 3.0)).mean(),
    lambda log_probs, values, rewards: -(torch.stack(log_probs) * sum(rewards)).sum(),
    lambda log_probs, values, rewards: -(torch.stack(log_probs) * torch.tensor(rewards)).sum(),
    lambda log_probs, values, rewards: (
        critic(to_go(rewards), values)
        - (torch.stack(log_probs) * (to_go(rewards) - torch.stack(values).detach())).sum()
    ),
    lambda log_probs, values, rewards: (  # one step ahead
        -(
            torch.stack(log_probs)[:-1]
            * (
                torch.tensor(rewards)[:-1]
                + 0.9 * torch.stack(values)[1:].detach()
                - torch.stack(values)[:-1].detach()
            )
        ).sum()
    ),
    lambda log_probs, values, rewards: -torch.stack(log_probs).sum(),  # imitation
]


@pytest.mark.parametrize("paid", [PAID, UNEVEN, [0.0] * (T - 1) + [1.0]])
@pytest.mark.parametrize("loss", HEALTHY)
def test_nothing_is_told_of_what_is_right_or_of_another_kind(loss: Loss, paid: list[float]) -> None:
    assert told(loss, paid) == []


REWARDS = st.lists(
    st.floats(-5, 5, allow_nan=False).map(lambda x: round(x, 3)), min_size=10, max_size=40
).filter(lambda found: len(set(found)) > 3)


@settings(max_examples=60, deadline=None)
@given(REWARDS, st.floats(0.6, 1.0), st.floats(0.1, 10.0), st.floats(-5, 5))
def test_the_order_is_found_again(
    rewards: list[float], discount: float, scale: float, shift: float
) -> None:
    for order in ("to-go", "so-far", "reversed"):
        weights = [scale * value + shift for value in sums(rewards, discount, order)]
        found = order_of(weights, rewards)
        if found is not None:  # else the sums are all the same, or the rewards themselves
            again = sums(rewards, found.discount, found.order)
            fit = torch.corrcoef(torch.tensor([weights, again], dtype=torch.float64))[0, 1]
            assert abs(float(fit)) > 1 - 1e-5
        if order == "to-go":
            assert found is None or (found.order, found.rising) == ("to-go", True)
