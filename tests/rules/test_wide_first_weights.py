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


FLOW = """
import math

import torch
import torch.nn as nn

torch.manual_seed(0)
angle = 2 * math.pi * torch.rand(4800)
rings = torch.stack([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(4800, 2)

class Coupling(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.register_buffer("keep", torch.tensor(keep))
        self.inside, self.out = nn.Linear(2, 32), nn.Linear(32, 4)
        {change}  # here

    def forward(self, x):
        kept = x * self.keep
        scale, shift = self.out(torch.tanh(self.inside(kept))).chunk(2, dim=1)
        scale = torch.tanh(scale) * (1 - self.keep)
        return kept + (1 - self.keep) * (x * scale.exp() + shift), scale.sum(1)

class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        keeps = ([1.0, 0.0], [0.0, 1.0])
        self.couplings = nn.ModuleList(Coupling(keep) for keep in keeps * 2)

    def forward(self, x):
        total = torch.zeros(len(x))
        for coupling in self.couplings:
            x, scaled = coupling(x)
            total = total + scaled
        return total - 0.5 * x.pow(2).sum(1)

def loss(model, batch):
    return -model(batch).mean()

def build():
    model = Flow()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return {{"model": model, "loss_fn": loss, "data": rings.split(40), "optimizer": optimizer}}
"""


def of_a_flow(folder: Path, change: str) -> list[tuple[str, str]]:
    (folder / "train.py").write_text(FLOW.format(change=change))
    config = Config(device="cpu", steps=120, snapshot_dir=str(folder))
    found = run_training(f"{folder / 'train.py'}:build", config).findings
    marked = [f for f in found if f.severity != "info" and f.culprit.location is not None]
    assert all("# here" in f.culprit.location.code for f in marked if f.culprit.location)
    return [(f.code, f.severity) for f in marked]


def test_a_loss_that_no_guess_is_known_for(tmp_path: Path) -> None:
    """What a flow scales is its own input, and no reward that weighs its loss."""
    assert of_a_flow(tmp_path, "nn.init.normal_(self.inside.weight, std=20)") == [
        ("ND611", "warning")
    ]
    assert of_a_flow(tmp_path, "nn.init.normal_(self.inside.weight, std=0.5)") == []


def test_layers_of_a_flow_that_are_frozen(tmp_path: Path) -> None:
    assert of_a_flow(tmp_path, "self.out.requires_grad_(False)") == [("ND508", "warning")]
