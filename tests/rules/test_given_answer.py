"""ND170: a loss that asks for nothing of what is hidden from the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import nanodoc

SCRIPT = """import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
base = torch.randn(512, 1, 1)
signals = base * torch.linspace(-1, 1, 24).view(1, 6, 4) + 0.1 * torch.randn(512, 6, 4)
{data}
model = nn.Sequential(nn.Flatten(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 24))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for x, in DataLoader(TensorDataset(signals), 32, shuffle=True):
    {body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
KEPT = "keep = (torch.rand(len(x), 6, 1) > 0.5)"
SHOWN = f"{KEPT}; prediction = model(x * keep).view_as(x); "


def findings(folder: Path, body: str, data: str = "") -> list[dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT.format(body=body, data=data))
    nanodoc("run", "--output", "json=report.json", "train.py", cwd=folder)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return [one for one in report["findings"] if one["code"] == "ND170"]


@pytest.mark.parametrize(
    "body",
    [
        f"{SHOWN}loss = ((prediction - x) ** 2 * keep).mean()",
        f"{SHOWN}rows = keep.expand_as(x); loss = F.l1_loss(prediction[rows], x[rows])",
        f"{KEPT}.float(); prediction = model(x * keep).view_as(x); "
        "loss = (F.mse_loss(prediction, x, reduction='none') * keep).sum() / keep.sum()",
    ],
)
def test_the_mask_the_wrong_way_round(tmp_path: Path, body: str) -> None:
    (found,) = findings(tmp_path, body)
    assert found["culprit"]["location"]["line"] == 13


@pytest.mark.parametrize(
    ("body", "data"),
    [
        # what is hidden is asked for
        (f"{SHOWN}loss = ((prediction - x) ** 2 * ~keep).mean()", ""),
        # all of it is
        (f"{SHOWN}loss = F.mse_loss(prediction, x)", ""),
        # nothing is hidden
        ("loss = F.mse_loss(model(x).view_as(x), x)", ""),
        # values that are missing are no values
        (
            "there = x != 0; loss = ((model(x * there).view_as(x) - x) ** 2 * there).mean()",
            "signals *= torch.rand(512, 6, 1) > 0.5",
        ),
        # the same region of every sample
        (
            "prediction = model(x * region).view_as(x); "
            "loss = ((prediction - x) ** 2 * region).mean()",
            "region = (torch.arange(6) < 3).view(1, 6, 1)",
        ),
    ],
)
def test_masks_that_are_right(tmp_path: Path, body: str, data: str) -> None:
    assert not findings(tmp_path, body, data)
