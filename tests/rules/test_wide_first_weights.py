"""First weights that are too wide, in a run that stays finite: shown by the same steps with narrower
ones."""

from __future__ import annotations

from pathlib import Path

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from nanodoc.report.report import Report
from tests.helpers import line_of

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
x = torch.randn(40, 32, 16)
y = (x @ torch.randn(16, 5)).argmax(-1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 5)
        )
        for layer in self.layers[::2]:
            nn.init.normal_(layer.weight, std={width})  # here

    def forward(self, x):
        return self.layers(x)

def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])

def build():
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return {{"model": model, "loss_fn": loss, "data": list(zip(x, y)), "optimizer": optimizer}}
"""


def report(folder: Path, width: float) -> Report:
    (folder / "train.py").write_text(SOURCE.format(width=width))
    config = Config(device="cpu", steps=40, snapshot_dir=str(folder))
    return run_training(f"{folder / 'train.py'}:build", config)


def test_all_layers_too_wide(tmp_path: Path) -> None:
    first = report(tmp_path, 1.0).findings[0]
    assert (first.code, first.severity) == ("ND611", "warning")
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(tmp_path / "train.py", "# here")
    assert first.fixes[0].verified


def test_a_width_that_costs_nothing(tmp_path: Path) -> None:
    assert "ND611" not in [finding.code for finding in report(tmp_path, 0.15).findings]
