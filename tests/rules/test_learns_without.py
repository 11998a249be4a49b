"""ND672: the predictions say nothing about their targets, and a call is found without which they
do."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import nanodoc

SCRIPT = """import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
inputs, weight = torch.randn(3000, 8), torch.randn(8, 1)
targets = inputs @ weight
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(110):
    rows = torch.randint(0, 3000, (32,))
    x, y = inputs[rows], targets[rows]
    {body}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def findings(folder: Path, body: str) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT.format(body=body))
    nanodoc("run", "--output", "json=report.json", "train.py", cwd=folder)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return [one for one in report["findings"] if one["severity"] != "info"]


@pytest.mark.parametrize(
    "body",
    ["loss = F.mse_loss(model(x.roll(1, 0)), y)", "loss = F.mse_loss(model(x), y.flip(0))"],
)
def test_rows_in_another_order_than_their_targets(tmp_path: Path, body: str) -> None:
    found = findings(tmp_path, body)
    assert [one["code"] for one in found][:1] == ["ND672"]
    assert found[0]["culprit"]["location"]["line"] == 13
    assert "with the targets of other samples" in found[0]["explanation"]


@pytest.mark.parametrize(
    "body",
    [
        # the same order for both
        "loss = F.mse_loss(model(x.flip(0)), y.flip(0))",
        # other samples on purpose, beside the own ones
        "loss = F.mse_loss(model(x), y) + F.relu(1 - model(x) + model(x.roll(1, 0))).mean() * 0.01",
        # nothing can be learnt: no change of a call helps, and nothing is raised
        "loss = F.mse_loss(model(torch.randn_like(x).flip(0)), y)",
        # mixed samples, in an order that is drawn
        "mix = torch.randperm(32); loss = F.mse_loss(model(0.7 * x + 0.3 * x[mix]), "
        "0.7 * y + 0.3 * y[mix])",
    ],
)
def test_rows_in_another_order_on_purpose(tmp_path: Path, body: str) -> None:
    assert "ND672" not in [one["code"] for one in findings(tmp_path, body)]
