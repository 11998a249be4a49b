"""A target network that follows another one, and whose own weights were not made smaller by as much as
was added: the optimizer's rate was blamed for the run that diverged."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn


@torch.no_grad()
def follow(target, online, tau, keep):
    for old, new in zip(target.parameters(), online.parameters()):
        old.mul_(keep)
        old.add_(tau * new)  # the update


def recipe(keep, lr):
    torch.manual_seed(0)
    nets = nn.ModuleDict({
        name: nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        for name in ("online", "target")
    })
    nets.target.load_state_dict(nets.online.state_dict())
    optimizer = torch.optim.Adam(nets.online.parameters(), lr)

    def train_step(nets, batch, optimizer):
        now, later, reward = batch
        with torch.no_grad():
            worth = reward + 0.99 * nets["target"](later).max(1).values
        loss = F.mse_loss(nets["online"](now)[:, 0], worth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(nets["target"], nets["online"], 0.05, keep)
        return loss

    data = [(torch.randn(32, 4), torch.randn(32, 4), torch.rand(32)) for _ in range(240)]
    return dict(model=nets, train_step=train_step, optimizer=optimizer, data=data, max_steps=240)
"""


@pytest.mark.parametrize(
    ("keep", "rate", "line"),
    [(1.0, "3e-3", "# the update"), (0.95, "3e-3", ""), (0.95, "30.0", "torch.optim.Adam(")],
)
def test_the_line_that_writes_them(tmp_path: Path, keep: float, rate: str, line: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{RECIPE}\n\ndef build():\n    return recipe({keep}, {rate})\n")
    found = [f for f in run_training(f"{file}:build", Config()).findings if f.code == "ND606"]
    at = [f.culprit.location.line if f.culprit.location else None for f in found]
    assert at == ([line_of(file, line)] if line else [])
