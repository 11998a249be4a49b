"""A smaller learning rate keeps almost any run from failing for as long as one looks: it is a cure
only where the run then learns.

A classifier that had become confident, policies whose returns grow, an ascent where a descent was
meant, and learning rates of other groups were all blamed on (or "cured" by) the one learning rate
that was found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.diagnosis.ranking import rank
from nanodoc.pipeline.run import run_training
from nanodoc.rules.catalogue import claims
from tests.experiments.test_experiments import ready


def found(recipe: Recipe, steps: int) -> tuple[Finding, ...]:
    # of step 0 only: how often weights are kept otherwise depends on how busy the machine is
    differential, evidence = ready(recipe, steps=steps, checkpoint_every=100)
    return differential.treat(rank(claims(differential.examine(evidence))))


def test_a_confident_classifier() -> None:
    """The loss falls until log(0): its weights grew, as those of any separable problem do."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    nn.init.normal_(model.weight, std=1e-2)
    x = torch.randn(64, 4) * 3
    y = (x[:, :1] > 0).float()

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        p = torch.sigmoid(model(batch[0]))
        return -(batch[1] * torch.log(p) + (1 - batch[1]) * torch.log(1 - p)).mean()

    findings = found(
        Recipe(
            model=model,
            loss_fn=loss_fn,
            data=[(x, y)],
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        ),
        400,
    )
    assert findings
    assert findings[0].name == "log-of-zero"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_values_that_leave_a_tiny_initialisation(seed: int) -> None:
    torch.manual_seed(seed)

    class Value(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.target = nn.Linear(4, 2), nn.Linear(4, 2)
            nn.init.normal_(self.net.weight, std=1e-2)
            self.target.load_state_dict(self.net.state_dict())
            self.target.requires_grad_(False)

    def loss_fn(model: Any, batch: torch.Tensor) -> torch.Tensor:
        values = model.net(batch)
        chosen = values.max(1).values
        with torch.no_grad():
            for own, other in zip(model.net.parameters(), model.target.parameters(), strict=True):
                other.lerp_(own, 0.05)
        reward = batch[:, 0] * torch.tanh(chosen.detach()) * 3
        return F.mse_loss(chosen, reward + 0.9 * model.target(batch.flip(0)).max(1).values)

    model = Value()
    optimizer = torch.optim.Adam(model.net.parameters(), 3e-3)
    assert (
        found(
            Recipe(
                model=model, loss_fn=loss_fn, data=list(torch.randn(20, 64, 4)), optimizer=optimizer
            ),
            200,
        )
        == ()
    )


TRAIN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    data = [torch.randn(16, 4) for _ in range(4)]
    loss_fn = lambda m, x: (m(x) - x[:, :1]).pow(2).mean()
    {optimizer}
    return {{"model": model, "loss_fn": loss_fn, "data": data, "optimizer": optimizer, "max_steps": 40}}
"""


def run(tmp_path: Path, optimizer: str) -> Finding:
    (tmp_path / "train.py").write_text(TRAIN.format(optimizer=optimizer))
    return run_training(
        f"{tmp_path / 'train.py'}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    ).findings[0]


def test_one_rate_is_lowered_where_it_is_written(tmp_path: Path) -> None:
    finding = run(tmp_path, "optimizer = torch.optim.SGD(model.parameters(), lr=3.0)")
    assert finding.name == "divergence"
    assert finding.fixes[0].verified is True
    assert "lr=" in str(finding.fixes[0].patch)


@pytest.mark.parametrize(
    "optimizer",
    [
        "optimizer = torch.optim.SGD([{'params': model[0].parameters(), 'lr': 30.0}, {'params': "
        "model[1].parameters()}], lr=1e-3)",
        "optimizer = [torch.optim.SGD(model[0].parameters(), lr=1e-3), "
        "torch.optim.SGD(model[1].parameters(), lr=3.0)]",
    ],
)
def test_of_several_rates_none_is_picked(optimizer: str, tmp_path: Path) -> None:
    finding = run(tmp_path, optimizer)
    assert finding.name in ("divergence", "exploding-gradients")
    assert all(fix.patch is None for fix in finding.fixes)
    assert finding.fixes[0].title.startswith(
        ("multiply every learning rate", "clip the gradient norm")
    )


def test_an_ascent_is_not_cured_by_smaller_steps(tmp_path: Path) -> None:
    finding = run(
        tmp_path, "optimizer = torch.optim.SGD(model.parameters(), lr=0.05, maximize=True)"
    )
    assert not any(fix.verified for fix in finding.fixes)


def test_inputs_that_grow_are_not_the_learning_rate() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    data = [torch.randn(16, 4) * 10.0**step for step in range(30)]
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, x: m(x).pow(2).mean(),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-30),
    )
    findings = found(recipe, 30)
    assert findings
    assert findings[0].name not in ("divergence", "exploding-gradients")


def test_one_batch_that_is_far_off_is_not_the_learning_rate() -> None:
    """Its update blows the weights up, whatever the learning rate: the batch is at fault."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    data = [torch.randn(16, 4) for _ in range(30)]
    data[20][3] = 1e9
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, x: (m(x) - x[:, :1]).pow(2).mean(),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
    )
    findings = found(recipe, 30)
    assert findings
    assert findings[0].name not in ("divergence", "exploding-gradients")


@pytest.mark.slow
def test_a_loss_that_begins_near_zero_may_grow() -> None:
    """Targets that move away from a tiny initialisation: a millionfold loss, and nothing is
    wrong."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    nn.init.normal_(model.weight, std=1e-4)
    nn.init.zeros_(model.bias)
    data = [
        (x := torch.randn(32, 4), x.sum(1, keepdim=True) * 1e-3 * 1.1**step) for step in range(120)
    ]
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=data,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3),
    )
    assert found(recipe, 120) == ()
