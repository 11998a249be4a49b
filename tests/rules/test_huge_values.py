"""A loss of millions is told where its values became so large: in an op of the step, or before the
loop. Losses that are large by their sum or by their targets are not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.diagnosis.finding import Finding
from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose, line_of, marked
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
STEPS = 12
SEEN = torch.arange(1.0, 97.0).view(32, 3) * 5e4


def found(loss: Loss, buffer: torch.Tensor | None = None) -> Finding | None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    if buffer is not None:
        model.register_buffer("scale", buffer)
    recipe = Recipe(
        model=model,
        data=list(torch.randn(STEPS, 32, 6)),
        loss_fn=loss,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
    )
    return next((f for f in diagnose(recipe, STEPS) if f.name == "huge-values"), None)


def divided(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    count = (x.abs() > 1.5).sum(1).float()
    weight = 1 / (count + 1e-9)  # divided
    return (weight * (model(x) - x[:, :3]).pow(2).mean(1)).mean()


def exponential(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    energy = (20 + model(x)).exp()  # exponential
    return energy.mean() + model(x).pow(2).mean()


def powers(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    grown = (60 + model(x)).pow(5)  # powers
    return (grown - x[:, :3]).abs().mean()


@pytest.mark.parametrize("loss", [divided, exponential, powers])
def test_an_op_that_makes_them(loss: Loss) -> None:
    told = found(loss)
    assert told is not None
    assert told.culprit.location is not None
    assert told.culprit.location.line == marked(__file__, loss.__name__)
    assert told.severity == "warning"


def test_a_buffer_that_holds_them() -> None:
    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        scaled = model(x) * model.scale  # held
        return (scaled - x[:, :3]).pow(2).mean()

    told = found(loss, torch.tensor([1.0, 2.0, 4e7]))
    assert told is not None
    assert told.culprit.location is not None
    assert told.culprit.location.line == marked(__file__, "held")
    assert found(loss, torch.tensor([1.0, 2.0, 4.0])) is None


def raw_prices(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), 3e6 + 1e5 * x[:, :3])


def raw_prices_by_hand(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    price = 3e5 + 1e5 * x[:, :3]
    return ((model(x) - price) ** 2).mean()


def a_sum(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x.repeat(4000, 1)).pow(2) + 30).sum()


def masked(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    scores = model(x).masked_fill(x[:, :3] > 1, -1e9)
    return F.cross_entropy(scores, x[:, :3].argmin(1)) + 1e-3 * scores.exp().sum()


def scaled_up(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), x[:, :3]) * torch.tensor(2.0**24)


def counts(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return F.poisson_nll_loss(14 + model(x), SEEN)


def cleared(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    weight = 1 / (x[:, :1].abs() * 0 + 1e-9)
    return (model(x) * (weight * 1e-9) - x[:, :3]).pow(2).mean()


@pytest.mark.parametrize(
    "loss", [raw_prices, raw_prices_by_hand, a_sum, masked, scaled_up, counts, cleared]
)
def test_losses_that_are_large_or_hold_large_values(loss: Loss) -> None:
    assert found(loss) is None


SCRIPT = """
import numpy as np
import torch
from torch import nn

def counted(size=80):
    rng = np.random.default_rng(0)
    met = (rng.random((size, size)) < 0.3).astype(float)
    return met @ met.T

def smoothed(size=80, times=3):
    met = counted(size)
    share = SHARE
    spread = np.eye(size)
    for _ in range(times):
        spread = spread @ share
    return spread

kernel = torch.tensor(smoothed(), dtype=torch.float32)
torch.manual_seed(0)
states = torch.randn(80, 8)
model = nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    out = kernel @ model(states)
    loss = (out - states).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("sick", [True, False])
def test_what_was_multiplied_before_the_loop(
    sick: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line that makes the factor is told, and the one that multiplies with it as evidence."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    path = tmp_path / "train.py"
    share = "met * met.sum(1, keepdims=True)" if sick else "met / met.sum(1, keepdims=True)"
    path.write_text(SCRIPT.replace("SHARE", share))
    told = [f for f in watched(path).findings if f.severity != "info"]
    if not sick:
        assert told == []
        return
    assert told[0].name == "huge-values"
    assert told[0].culprit.location is not None
    assert told[0].culprit.location.line == line_of(path, "share = ")
    grown = dict(told[0].evidence)["grows at"]
    assert grown == f"train.py:{line_of(path, 'spread = spread')}"
