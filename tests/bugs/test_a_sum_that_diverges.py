"""A run that diverged since its loss is a sum over all elements was told at the optimizer's rate, which
is an ordinary one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of, nanodoc

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn


def recipe(make, rate, reduction):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    data = torch.randn(480, 64)

    def loss_fn(model, x):
        return F.smooth_l1_loss(model(x), x, reduction=reduction)  # the loss

    return {
        "model": model,
        "loss_fn": loss_fn,
        "optimizer": make(model.parameters(), lr=rate),  # the optimizer
        "data": torch.utils.data.DataLoader(data, batch_size=32),
        "max_steps": 60,
    }
"""


@pytest.mark.parametrize(
    ("making", "line"),
    [
        ("lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9), 1e-2, 'sum'", "the loss"),
        ("torch.optim.Adam, 3.0, 'sum'", "the optimizer"),
        ("lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9), 300.0, 'mean'", "the optimizer"),
    ],
)
def test_the_line_is_that_of_the_sum(tmp_path: Path, making: str, line: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"{RECIPE}\n\ndef build():\n    return recipe({making})\n")
    found = run_training(f"{file}:build", Config()).findings[0]
    assert found.code == "ND606"
    assert found.culprit.location is not None
    wanted = line_of(str(file), f"# {line}")
    lines = [wanted, line_of(str(file), "def build") + 1] if line == "the optimizer" else [wanted]
    assert found.culprit.location.line in lines


SUMMED = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(641, 16)
y = x.sum(1) + 0.1 * torch.randn(641)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 32, shuffle=True)
for epoch in range(4):
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), targets, reduction="sum")  # the sum
        (loss.clone() / 1).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1000.0)
        optimizer.step()
"""


def test_the_sum_is_named_where_the_run_stands_still(tmp_path: Path) -> None:
    """Clipped, it does not diverge; and the last batch of all is one sample, whose sum is its
    mean."""
    file = tmp_path / "train.py"
    file.write_text(SUMMED)
    done = nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["findings"][0]
    assert found["code"] in ("ND606", "ND609"), done.stderr
    assert found["culprit"]["location"]["line"] == line_of(file, "# the sum")
