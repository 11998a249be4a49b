"""The contract of `build()`: every accepted shape trains, and the batch reaches the loss as the
user made it."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe, UsageError
from nanodoc.recipe.adapt import as_recipe
from nanodoc.recipe.target import split_entrypoint
from tests.helpers import run_engine

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Bag:
    x: torch.Tensor
    extra: dict[str, Any]


def parts() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return {
        "model": model,
        "loss_fn": lambda m, b: (m(b[0]) - b[1]).pow(2).mean(),
        "data": [(torch.randn(4, 3), torch.randn(4, 1))] * 2,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }


def as_dataclass() -> Any:
    made = dataclasses.make_dataclass("Mine", ["model", "loss_fn", "data", "optimizer"])
    return made(**parts())


@pytest.mark.parametrize(
    "value",
    [
        parts,
        lambda: tuple(parts().values()),
        lambda: Recipe(**parts()),
        as_dataclass,
        lambda: tuple(parts().values())[:3],
    ],
)
def test_every_shape_of_recipe_trains(value: Any) -> None:
    outcome = run_engine(as_recipe(value(), "build"), steps=3)
    assert outcome.steps_run == 3
    assert outcome.evidence.trip is None


@pytest.mark.parametrize(
    ("batch", "loss"),
    [
        (Pair(torch.ones(2, 3), torch.ones(2, 1)), lambda m, b: (m(b.x) - b.y).mean()),
        (
            Bag(torch.ones(2, 3), {"scale": [torch.ones(1), 2]}),
            lambda m, b: (m(b.x) * b.extra["scale"][0] * b.extra["scale"][1]).mean(),
        ),
        ({"a": {"b": (torch.ones(2, 3), "text")}}, lambda m, b: m(b["a"]["b"][0]).mean()),
        (torch.ones(2, 3), lambda m, b: m(b).mean()),
    ],
)
def test_nested_batches_keep_their_types(batch: Any, loss: Any) -> None:
    made = parts() | {"data": [batch], "loss_fn": loss}
    assert run_engine(as_recipe(made, "build"), steps=2).evidence.failure is None


def test_criterion_scheduler_clipping_and_accumulation() -> None:
    made = parts()
    made.pop("loss_fn")
    scheduler = torch.optim.lr_scheduler.StepLR(made["optimizer"], 1, gamma=0.5)
    recipe = as_recipe(
        made
        | {
            "criterion": nn.MSELoss(),
            "scheduler": scheduler,
            "clip_grad_norm": 1.0,
            "accumulate": 2,
        },
        "build",
    )
    outcome = run_engine(recipe, steps=4)
    assert outcome.steps_run == 4
    # two batches a pass, two a step: the scheduler steps once a pass, after each pass but the last
    assert scheduler.get_last_lr() == [pytest.approx(0.1 * 0.5**3)]


def test_accumulation_is_the_mean_of_the_micro_batches() -> None:
    whole, split = parts(), parts()
    x, y = torch.randn(8, 3), torch.randn(8, 1)
    whole["data"], split["data"] = [(x, y)], [(x[:4], y[:4]), (x[4:], y[4:])]
    a, b = as_recipe(whole, "build"), as_recipe(split | {"accumulate": 2}, "build")
    run_engine(a, 3)
    run_engine(b, 3)
    torch.testing.assert_close(a.model.state_dict(), b.model.state_dict())


def test_several_optimizers_and_a_train_step() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)})
    optimizers = [
        torch.optim.Adam(model["g"].parameters()),
        torch.optim.Adam(model["d"].parameters()),
    ]
    seen = []

    def train_step(model: Any, batch: Any, optimizer: Any, scaler: Any) -> torch.Tensor:
        seen.append(scaler)
        for one, sign in zip(optimizer, (1, -1), strict=True):
            one.zero_grad()
            loss: torch.Tensor = sign * model["d"](model["g"](batch)).mean()
            loss.backward()
            one.step()
        return loss

    recipe = as_recipe(
        {
            "model": model,
            "train_step": train_step,
            "optimizer": optimizers,
            "data": [torch.randn(4, 2)],
        },
        "build",
    )
    assert run_engine(recipe, 5).steps_run == 5
    assert seen == [None] * 5


def test_a_trip_in_the_second_optimizers_backward() -> None:
    model = nn.ModuleDict({"g": nn.Linear(2, 2, bias=False), "d": nn.Linear(2, 1)})
    optimizers = [
        torch.optim.SGD(model["d"].parameters(), lr=0.1),
        torch.optim.SGD(model["g"].parameters(), lr=0.1),
    ]

    def train_step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        fake = model["g"](batch)
        optimizer[0].zero_grad()
        model["d"](fake.detach()).mean().backward()
        optimizer[0].step()
        optimizer[1].zero_grad()
        loss = fake.pow(2).sum(1).sqrt().mean() + model["d"](fake).mean()
        loss.backward()
        optimizer[1].step()
        return loss

    recipe = as_recipe(
        {
            "model": model,
            "train_step": train_step,
            "optimizer": optimizers,
            "data": [torch.ones(3, 2), torch.zeros(3, 2)],
        },
        "build",
    )
    outcome = run_engine(recipe, 4)
    assert outcome.steps_run == 2
    assert outcome.evidence.reproduced == "bitwise"
    (birth,) = outcome.evidence.births
    assert birth.site.short == "sqrt"
    assert birth.site.location is not None
    assert "fake.pow(2).sum(1).sqrt()" in birth.site.location.code


def test_a_generator_ends_and_says_so() -> None:
    def once() -> Iterator[torch.Tensor]:
        yield from (torch.randn(2, 3) for _ in range(3))

    outcome = run_engine(
        as_recipe(parts() | {"data": once(), "loss_fn": lambda m, b: m(b).mean()}, "build"),
        steps=10,
    )
    assert outcome.steps_run == 3
    assert "can't be iterated again" in outcome.notes[0][1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": 3}, "model must be a torch.nn.Module"),
        ({"optimizer": "adam"}, "optimizer must be a torch.optim.Optimizer"),
        ({"loss_fn": 3}, "loss_fn must be callable"),
        ({"data": 3}, "data must be an iterable"),
        ({"accumulate": 0}, "at least 1"),
        ({"max_steps": True}, "at least 1"),
        ({"scheduler_interval": "week"}, '"epoch" or "step"'),
        ({"amp": "float16"}, "amp must be a dict"),
        ({"amp": {"dtype": "int8"}}, '"float16" or "bfloat16"'),
        ({"amp": {"dtyp": "float16"}}, "unknown key 'dtyp'"),
    ],
)
def test_what_breaks_the_contract_is_said(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        as_recipe(parts() | change, "build")


def test_entrypoints() -> None:
    assert split_entrypoint("a/b.py:build") == (Path("a/b.py"), "build")
    assert split_entrypoint("b.py") == (Path("b.py"), "build")
    with pytest.raises(UsageError):
        split_entrypoint("b.py:not a name")
