"""Findings that the source alone is evidence of stood in branches that were not taken, and in
functions that nobody called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc

LOST = """
import torch
from torch import nn

CLIP = {clip}
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def limited():
    for p in model.parameters():
        p.data.clamp(-1, 1)


for step in range(30):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""

PLATEAU = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, {mode!r}, factor=0.5, patience=8, threshold=0.5)
for step in range(60):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {name} = {value}
    scheduler.step({name})
"""


def codes(path: Path) -> dict[str, Any]:
    told = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *told, path.name, cwd=path.parent)
    report = path.parent / "report.json"
    assert report.exists(), done.stderr
    return {one["code"]: one for one in json.loads(report.read_text())["findings"]}


@pytest.mark.parametrize(
    ("clip", "after", "told"),
    [
        (True, "limited()", True),
        (True, "pass", False),
        (
            False,
            "if CLIP:\n        for p in model.parameters():\n            p.data.clamp(-1, 1)",
            False,
        ),
        (
            True,
            "if CLIP:\n        for p in model.parameters():\n            p.data.clamp(-1, 1)",
            True,
        ),
        (
            False,
            "while CLIP:\n        for p in model.parameters():\n            p.data.clamp(-1, 1)",
            False,
        ),
        (
            True,
            "match CLIP:\n        case False:\n            for p in model.parameters():\n"
            "                p.data.clamp(-1, 1)",
            False,
        ),
    ],
)
def test_a_result_that_is_thrown_away(tmp_path: Path, clip: bool, after: str, told: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(LOST.replace("{clip}", str(clip)).replace("{after}", after))
    found = codes(path).get("ND646")
    assert (found is not None) == told
    if found is not None and after != "limited()":
        line = path.read_text().splitlines().index("            p.data.clamp(-1, 1)") + 1
        assert found["culprit"]["location"]["line"] == line


@pytest.mark.parametrize(
    ("mode", "name", "value", "told"),
    [
        ("max", "val_loss", "loss.item()", True),
        ("max", "neg_loss", "-loss.item()", False),
        ("max", "loss_improvement", "1 - loss.item()", False),
        ("min", "best_val_acc", "1 / (1 + loss.item())", True),
        ("min", "accuracy_drop", "loss.item()", False),
    ],
)
def test_a_name_that_turns_a_metric_around(
    tmp_path: Path, mode: str, name: str, value: str, told: bool
) -> None:
    path = tmp_path / "train.py"
    path.write_text(PLATEAU.format(mode=mode, name=name, value=value))
    found = codes(path).get("ND660")
    assert (found is not None) == told
    if found is not None:
        line = line_of(path, "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau")
        assert found["culprit"]["location"]["line"] == line
