"""Differences of equal tensors: a reference that is the model, and tricks that mean it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe, examine
from tests.helpers import line_of


def told(way: str) -> list[tuple[str, int | None]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    other = model if way == "itself" else copy.deepcopy(model)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        out = model(batch)
        if way == "straight through":
            return ((out + (out.sign() - out).detach()) ** 2).mean() + out.pow(2).mean()
        if way == "surrogate":
            gain = batch[:, :3] - batch[:, :3].mean()
            gain = gain / gain.norm()
            return ((out - out.detach()).exp() * (gain + 1)).mean()
        with torch.no_grad():
            fixed = other(batch)  # the other
        return nn.functional.softplus((out - fixed).sum(1)).mean()

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=list(torch.randn(20, 8, 4)),
    )
    return [
        (f.code, f.culprit.location.line if f.culprit.location else None)
        for f in examine(recipe, steps=20).findings
        if f.code == "ND639"
    ]


def test_the_line_is_that_of_the_pass_without_gradients() -> None:
    assert told("itself") == [("ND639", line_of(__file__, "# the other"))]


@pytest.mark.parametrize("way", ["a copy", "straight through", "surrogate"])
def test_a_copy_and_tricks_are_left_alone(way: str) -> None:
    assert told(way) == []


@pytest.mark.parametrize(
    ("way", "found"),
    [
        ("in this step", True),
        ("when it acted", False),
        ("on purpose", False),
        ("in the step", False),
    ],
)
def test_a_ratio_of_a_policy_to_itself(way: str, found: bool) -> None:
    """Of old log-probabilities that are those of the same weights. Where the whole rollout belongs
    to the step, the ratio is 1 as it should be."""
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    seen = torch.randn(64, 4)
    acts = torch.randint(3, (64,))
    gain = torch.randn(64)
    before = policy(seen).log_softmax(1).gather(1, acts[:, None])[:, 0].detach()
    worth = nn.Linear(4, 1)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        state, act, old, gained = batch

        def said() -> torch.Tensor:
            return model(state).log_softmax(1).gather(1, act[:, None])[:, 0]  # type: ignore[no-any-return]

        new = said()
        if way == "on purpose":
            old = new.detach()
        elif way != "when it acted":
            with torch.no_grad():
                old = said()
                gained = worth(state)[:, 0] if way == "in the step" else gained
        return -(gained * (new - old).exp()).mean() + 0.01 * new.square().mean()

    recipe = Recipe(
        model=policy,
        loss_fn=loss_fn,
        optimizer=torch.optim.SGD(policy.parameters(), lr=0.1),
        data=[(seen[i], acts[i], before[i], gain[i]) for i in torch.arange(64).split(16)] * 5,
    )
    codes = {finding.code for finding in examine(recipe, steps=20).findings}
    assert ("ND639" in codes) is found


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (lambda said, wanted: said.detach(), True),
        (lambda said, wanted: said.detach().clone().view(-1, 3), True),
        (lambda said, wanted: wanted, False),
        (lambda said, wanted: said.detach().roll(1, 0), False),
        (lambda said, wanted: (said > 0).float(), False),
    ],
)
def test_a_target_that_is_the_prediction(target: Any, found: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        x, wanted = batch
        said = model(x)
        return said.square().mean() + nn.functional.mse_loss(said, target(said, wanted))

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=[(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(20)],
    )
    codes = [one.code for one in examine(recipe, steps=20).findings]
    assert ("ND639" in codes) is found
