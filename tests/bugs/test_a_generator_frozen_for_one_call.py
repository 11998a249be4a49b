"""Found by a blind set: a generator that Lightning freezes while the discriminator learns was told as a frozen part
whose eval() train() had taken back, since it had been measured before the training (ND632). And an optimizer that was
given a target network's parameters was told as layers that run without gradients (ND509), where another optimizer was
right."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

GAN = """
import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(0)
    nets = nn.ModuleDict({
        "generator": nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)),
        "critic": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)),
    })
    with torch.no_grad():
        nets["generator"].eval()(torch.randn(64, 2)).mean()
    nets.train()
    first = torch.optim.Adam(nets["generator"].parameters(), 1e-3)
    second = torch.optim.Adam(nets["critic"].parameters(), 1e-3)

    def step(nets, batch, optimizers):
        generator, critic = nets["generator"], nets["critic"]
        first.zero_grad()
        loss = F.softplus(-critic(generator(torch.randn(16, 2)))).mean()
        loss.backward()
        first.step()
        generator.requires_grad_(False)
        second.zero_grad()
        made = generator(torch.randn(16, 2))
        other = F.softplus(critic(made)).mean() + F.softplus(-critic(batch)).mean()
        other.backward()
        second.step()
        generator.requires_grad_(True)
        return loss

    return dict(model=nets, train_step=step, optimizer=[first, second],
                data=list(torch.randn(8, 16, 4)), max_steps=16)
"""
TARGETS = """
import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(0)
    names = ("actor", "target_actor", "critic")
    nets = nn.ModuleDict({name: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4)) for name in names})
    critics = torch.optim.Adam(nets["critic"].parameters(), 1e-3)
    actors = torch.optim.Adam(nets["target_actor"].parameters(), 1e-3)  # here

    def step(nets, batch, optimizers):
        with torch.no_grad():
            wanted = nets["critic"](nets["target_actor"](batch)) * 0.9
        loss = F.mse_loss(nets["critic"](batch), wanted)
        critics.zero_grad()
        loss.backward()
        critics.step()
        told = -nets["critic"](nets["actor"](batch)).mean()
        actors.zero_grad()
        told.backward()
        actors.step()
        return loss

    return dict(model=nets, train_step=step, optimizer=[critics, actors], data=list(torch.randn(8, 16, 4)),
                max_steps=16)
"""


@pytest.mark.parametrize(("source", "code"), [(GAN, None), (TARGETS, "ND506")])
def test_what_is_told(tmp_path: Path, source: str, code: str | None) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    found = [f for f in run_training(f"{file}:build", Config()).findings if f.severity != "info"]
    assert "ND632" not in [f.code for f in found]
    if code is not None:
        assert found[0].code == code
        assert found[0].culprit.location is not None
        assert found[0].culprit.location.line == line_of(file, "# here")
