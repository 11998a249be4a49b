"""A generator's loss through a graph that the discriminator's second backward had freed was called
"backward() is called twice on one loss", with the first backward, which shares nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

G, D = nn.Linear(4, 6), nn.Linear(6, 1)
g_opt = torch.optim.Adam(G.parameters())
d_opt = torch.optim.Adam(D.parameters())

def step(model, batch, optimizer, scaler):
    d_opt.zero_grad()
    F.softplus(-D(batch)).mean().backward()
    fake = G(torch.randn(8, 4))
    judged = F.linear(fake, D.weight, D.bias)  # not detached
    F.softplus(judged).mean().backward()  # freed
    d_opt.step()
    g_opt.zero_grad()
    loss = F.softplus(-D(fake)).mean()
    loss.backward()
    g_opt.step()
    return loss

def build():
    return {"model": nn.ModuleDict({"G": G, "D": D}), "train_step": step,
            "data": [torch.randn(8, 6)] * 4, "optimizer": [g_opt, d_opt]}
"""


def test_the_losses_that_share_it_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(RECIPE)
    report = run_training("train.py:build", Config(device="cpu", steps=2))
    first = report.findings[0]
    assert first.title == "two losses share a graph that the first backward() frees"
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(path, "# not detached")
    freed = str(dict(first.evidence)["freed at"])
    assert freed.startswith(f"train.py:{line_of(path, '# freed')}:")


def test_the_call_that_gives_it_to_a_network_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not a line inside of that network, which is right."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    critic = (
        "class Critic(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return F.linear(x, self.weight, self.bias)\n\n\nG, D = "
    )
    source = RECIPE.replace("G, D = ", critic).replace("nn.Linear(6, 1)", "Critic(6, 1)")
    path.write_text(source.replace("F.linear(fake, D.weight, D.bias)", "D(fake)"))
    first = run_training("train.py:build", Config(device="cpu", steps=2)).findings[0]
    assert first.code == "ND503"
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(path, "# not detached")
    assert first.fixes[0].patch == "D(fake.detach())"
