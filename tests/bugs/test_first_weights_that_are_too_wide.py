"""He's initialisation without the kernel's size: the optimizer's rate was blamed, and a hundredth of it was
the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        convs = [nn.Conv2d(12, 12, 3, padding=1, bias=False) for _ in range(7)]
        layers = [layer for conv in convs for layer in (conv, nn.ReLU())]
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), *layers)
        self.head = nn.Conv2d(12, 1, 3, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                n = kernel * module.in_channels
                nn.init.normal_(module.weight, 0.0, (2.0 / n) ** 0.5)  # the width

    def forward(self, x):
        return x + self.head(self.body(x))


def recipe(kernel, lr):
    torch.manual_seed(0)
    model = Net(kernel)
    x = torch.randn(10, 8, 1, 12, 12)
    return dict(model=model, criterion=nn.MSELoss(), data=[(one, 0.5 * one) for one in x],
                optimizer=torch.optim.SGD(model.parameters(), lr, momentum=0.9), max_steps=60)
"""


@pytest.mark.parametrize(
    ("kernel", "rate", "line"), [(3, 0.002, "# the width"), (9, 0.002, ""), (9, 3.0, "SGD(")]
)
def test_the_line_of_the_initialisation(
    tmp_path: Path, kernel: int, rate: float, line: str
) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{RECIPE}\n\ndef build():\n    return recipe({kernel}, {rate})\n")
    found = run_training(f"{file}:build", Config()).findings
    at = [f.culprit.location.line if f.culprit.location else None for f in found]
    assert at == ([line_of(file, line)] if line else [])
    if kernel == 3:
        assert found[0].fixes[0].verified


RESIDUAL = """
import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


def build():
    torch.manual_seed(0)
    x = torch.randn(10, 32, 10)
    y = x[..., :3].sum(2, keepdim=True)
    model = nn.Sequential(nn.Linear(10, 64), *[Block() for _ in range(3)], nn.Linear(64, 1))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
    return dict(model=model, criterion=nn.MSELoss(), data=list(zip(x, y)),
                optimizer=torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), max_steps=20)
"""


def test_residual_layers_that_do_not_bear_his_width_either(tmp_path: Path) -> None:
    """With He's width the steps begin far lower, and diverge all the same; with torch's own they do not."""
    file = tmp_path / "train.py"
    file.write_text(RESIDUAL)
    found = run_training(f"{file}:build", Config(snapshot_dir=str(tmp_path))).findings[0]
    assert found.code in ("ND601", "ND606")
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(file, "nn.init.normal_(")
    assert "1 / sqrt(3 fan_in)" in found.fixes[0].title
    assert found.fixes[0].verified
