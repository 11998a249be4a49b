"""The actor's loss was made by a method under no_grad. The first step, in which the graph was followed,
updates the critic alone: that the actor is never used was told as an information."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        return torch.tanh(self.layer(x))

    @torch.no_grad()
    def act(self, x):
        return self(x)


def recipe(chosen):
    torch.manual_seed(0)
    actor, critic = Actor(), nn.Linear(6, 1)
    of_actor = torch.optim.Adam(actor.parameters(), 1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    steps = []

    def train_step(model, batch, optimizers):
        steps.append(1)
        value = critic(torch.cat([batch, torch.randn(len(batch), 2)], 1))
        loss = F.mse_loss(value, batch.sum(1, keepdim=True))
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        if len(steps) % 2 == 0:
            actions = chosen(actor, batch, len(steps))
            of_actor.zero_grad()
            worth = -critic(torch.cat([batch, actions], 1)).mean()
            worth.backward()
            of_actor.step()
        return loss

    return dict(model=nn.ModuleDict(dict(actor=actor, critic=critic)), train_step=train_step,
                optimizer=[of_actor, of_critic], data=list(torch.randn(24, 8, 4)), max_steps=240)


def sick():
    return recipe(lambda actor, batch, step: actor.act(batch))


def healthy():
    return recipe(lambda actor, batch, step: actor(batch))


def later():
    return recipe(lambda actor, batch, step: actor(batch) if step > 12 else actor.act(batch))
"""


def of_the_actor(folder: Path, build: str) -> list[Finding]:
    file = folder / "train.py"
    file.write_text(RECIPE)
    report = run_training(f"{file}:{build}", Config())
    return [f for f in report.findings if f.code in ("ND505", "ND501")]


def test_the_backward_that_misses_them_has_the_line(tmp_path: Path) -> None:
    [found] = of_the_actor(tmp_path, "sick")
    assert (found.code, found.severity) == ("ND505", "warning")
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(tmp_path / "train.py", "worth.backward()")


@pytest.mark.parametrize("build", ["healthy", "later"])
def test_a_network_that_learns_now_or_later(tmp_path: Path, build: str) -> None:
    assert of_the_actor(tmp_path, build) == []
