"""A run that diverged has one cause, the updates, however many ops overflowed in its last step."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import diagnose


def test_a_learning_rate_far_too_high() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 1))
    x = torch.randn(64, 8)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]),
        data=[(x, x.sum(1, keepdim=True))],
        optimizer=torch.optim.SGD(model.parameters(), lr=1.5),
    )
    (finding,) = diagnose(recipe, steps=60)
    assert finding.name == "divergence"
    assert finding.culprit.kind == "optimizer"
    assert dict(finding.evidence)["learning rate"] == 1.5


RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=0.5)

    def forward(self, x):
        return x + self.second(self.first(x) * torch.tanh(x))


def build():
    torch.manual_seed(0)
    blocks = [Block(16) for _ in range(10)]
    model = nn.Sequential(nn.Linear(8, 16), *blocks, nn.Linear(16, 1))
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.smooth_l1_loss(model(batch).squeeze(-1), batch.mean(-1)),
        "data": list(torch.randn(20, 16, 8)),
        "optimizer": torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9),
    }
"""


def test_one_update_that_no_smaller_rate_makes_harmless(tmp_path: Path) -> None:
    """The first gradients are so large that smaller rates fail, too: an op was blamed that met
    weights 2 000 times as large as at the start."""
    (tmp_path / "train.py").write_text(RECIPE)
    report = run_training(f"{tmp_path / 'train.py'}:build", Config(snapshot_dir=str(tmp_path)))
    (finding,) = report.findings
    assert finding.name == "divergence"
    assert finding.culprit.location is not None
    assert "torch.optim.SGD" in finding.culprit.location.code
