"""Trainings with several optimizers: what both hold, and terms that train nothing, and
parameters that nothing trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal

from nanodoc import Recipe
from tests.helpers import diagnose

APART, IDLE, UNTRAINED = "ND676", "ND677", "ND678"


def shared_trunk(way: str) -> set[str]:
    """Two tasks with a trunk, which both optimizers hold; or one task, and what works against
    it."""
    torch.manual_seed(0)
    trunk, one, other = nn.Linear(6, 24), nn.Linear(24, 1), nn.Linear(24, 1)
    model = nn.ModuleDict({"trunk": trunk, "one": one, "other": other})
    first = torch.optim.Adam([*trunk.parameters(), *one.parameters()], 1e-3)
    against = list(model.parameters()) if way == "against" else [*trunk.parameters()]
    second = torch.optim.Adam([*against, *(other.parameters() if way != "against" else ())], 1e-3)

    def train_step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        wanted = batch[:, :1].sin()
        first.zero_grad()
        loss = F.mse_loss(one(trunk(batch).tanh()), wanted)
        loss.backward()
        first.step()
        second.zero_grad()
        if way == "against":
            (-F.mse_loss(one(trunk(batch).tanh()), wanted)).backward()
        elif way == "compromise":
            (-F.mse_loss(other(trunk(batch).tanh()), wanted)).backward()
        else:
            F.mse_loss(other(trunk(batch).tanh()), batch[:, 3:4] * batch[:, 4:5]).backward()
        second.step()
        return loss

    recipe = Recipe(
        model=model,
        train_step=train_step,
        optimizer=[first, second],
        data=list(torch.randn(60, 32, 6)),
    )
    return {finding.code for finding in diagnose(recipe, 60)}


@pytest.mark.parametrize("way", ["two tasks", "compromise"])
def test_a_trunk_of_two_tasks_is_left_alone(way: str) -> None:
    """Also at a compromise, where both pull in opposite directions."""
    assert APART not in shared_trunk(way)


def test_what_one_does_the_other_undoes() -> None:
    assert APART in shared_trunk("against")


def actor_and_critic(way: str) -> dict[str, str]:
    """{code: the code of the line that is blamed}"""
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    model = nn.ModuleDict({"actor": actor, "critic": critic})
    acting = torch.optim.Adam(actor.parameters(), 1e-3)
    judging = torch.optim.Adam(critic.parameters(), 1e-3)

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        state, done, paid = batch
        loss = F.mse_loss(critic(torch.cat([state, done], 1)), paid)
        if way not in ("together", "in turn"):
            judging.zero_grad()
            loss.backward()
            judging.step()
        mean, spread = actor(state).chunk(2, 1)
        chances = Normal(mean, F.softplus(spread) + 0.01)
        action = chances.sample() if way == "sample" else chances.rsample()
        judged = done if way == "kept action" else action
        if way == "detached":
            judged = action.detach()
        pleased = critic(torch.cat([state, judged], 1))
        if way == "one distance":  # its other half is trained by the other optimizer
            pleased = pleased + critic(torch.cat([state, done], 1)).mean()
        if way == "in turn":  # each optimizer steps in every other iteration
            acting.zero_grad()
            judging.zero_grad()
            (loss + (0.1 * chances.log_prob(action.detach())).mean()).backward()
            (acting if state[0, 0] > 0 else judging).step()
            return loss
        if way == "together":
            acting.zero_grad()
            judging.zero_grad()
            (loss + (0.1 * chances.log_prob(action)).mean()).backward()
            acting.step()
            judging.step()
            return loss
        acting.zero_grad()
        if way == "cleared by hand":
            for parameter in critic.parameters():
                parameter.grad = None
        (0.1 * chances.log_prob(action) - pleased).mean().backward()
        acting.step()
        return loss

    state, done = torch.randn(20, 16, 3), torch.randn(20, 16, 1)
    recipe = Recipe(
        model=model,
        train_step=train_step,
        optimizer=[acting, judging],
        data=list(zip(state, done, -((done - state[..., :1]) ** 2), strict=True)),
    )
    return {
        finding.code: finding.culprit.location.code if finding.culprit.location else ""
        for finding in diagnose(recipe, 20)
    }


@pytest.mark.parametrize(
    ("way", "line"),
    [
        ("sample", "action = chances.sample() if"),
        ("detached", "judged = action.detach()"),
    ],
)
def test_a_term_that_trains_nothing(way: str, line: str) -> None:
    found = actor_and_critic(way)
    assert line in found[IDLE]


@pytest.mark.parametrize(
    "way", ["rsample", "together", "cleared by hand", "kept action", "one distance", "in turn"]
)
def test_terms_that_are_trained_on(way: str) -> None:
    assert IDLE not in actor_and_critic(way)


def two_critics(way: str) -> dict[str, str]:
    """{code: the code of the line that is blamed}"""
    torch.manual_seed(0)
    actor, critics = nn.Linear(3, 1), nn.ModuleList(nn.Linear(4, 1) for _ in range(2))
    acting = torch.optim.Adam(actor.parameters(), 1e-3)
    judging = torch.optim.Adam(critics.parameters(), 1e-3)
    steps = 0

    def train_step(model: Any, batch: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        state, done, paid = batch
        one, other = (critic(torch.cat([state, done], 1)) for critic in critics)
        loss = F.mse_loss(one, paid)
        if way not in ("one", "by hand"):
            loss = loss + F.mse_loss(other, paid)
        if way != "by hand":
            judging.zero_grad()
            loss.backward()
            judging.step()
        if way == "seldom" and steps % 2:
            return loss
        if way == "by hand":  # gradients that are kept, cleared and put back
            judging.zero_grad()
            F.mse_loss(critics[1](torch.cat([state, done], 1)), paid).backward()
            kept = [p.grad.clone() for p in critics[1].parameters() if p.grad is not None]
            judging.zero_grad()
            F.mse_loss(critics[0](torch.cat([state, done], 1)), paid).backward()
            for p, gradient in zip(critics[1].parameters(), kept, strict=True):
                p.grad = gradient
            judging.step()
        pair = torch.cat([state, actor(state)], 1)
        acting.zero_grad()
        if way == "in turn":
            judging.zero_grad()
        (-torch.min(critics[0](pair), critics[1](pair))).mean().backward()
        acting.step()
        return loss

    state, done = torch.randn(20, 16, 3), torch.randn(20, 16, 1)
    recipe = Recipe(
        model=nn.ModuleDict({"actor": actor, "critics": critics}),
        train_step=train_step,
        optimizer=[acting, judging],
        data=list(zip(state, done, -((done - state[..., :1]) ** 2), strict=True)),
    )
    return {
        finding.code: finding.culprit.location.code if finding.culprit.location else ""
        for finding in diagnose(recipe, 20)
    }


def test_a_critic_that_no_loss_trains() -> None:
    assert "F.mse_loss(one, paid)" in two_critics("one")[UNTRAINED]


@pytest.mark.parametrize("way", ["both", "seldom", "in turn", "by hand"])
def test_critics_that_are_trained(way: str) -> None:
    assert UNTRAINED not in two_critics(way)
