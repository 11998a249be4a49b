"""A function that trains, called twice with one model, was one training: the first loss of the one
was compared with the last of the other, a smaller rate was "verified" by that, and the head that no
optimizer holds was told at the line of the first optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.helpers import line_of, nanodoc

SCRIPT = """
import sys
import torch
from torch import nn


def fit(model, optimizer, x, y):
    for epoch in range(3):
        for start in range(0, 320, 16):
            loss = nn.functional.cross_entropy(model(x[start : start + 16]), y[start : start + 16])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


torch.manual_seed(0)
x = torch.randn(320, 12)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
first = torch.optim.Adam(model.parameters(), lr=1e-2)
fit(model, first, x, x[:, :4].argmax(1))
if sys.argv[1] == "new head":
    model[2] = nn.Linear(32, 5)
second = torch.optim.Adam(model.parameters(), lr=2e-3)
if sys.argv[1] == "too late":
    model[2] = nn.Linear(32, 5)
fit(model, second, x, x[:, 4:9].argmax(1) if sys.argv[1] != "same task" else x[:, :4].argmax(1))
"""


def told(folder: Path, how: str) -> tuple[dict[str, Any], str]:
    (folder / "train.py").write_text(SCRIPT)
    shown = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *shown, "train.py", "--", how, cwd=folder)
    return json.loads((folder / "report.json").read_text()), done.stderr


def test_a_head_that_comes_after_the_optimizer(tmp_path: Path) -> None:
    report, _ = told(tmp_path, "too late")
    found = [one for one in report["findings"] if one["severity"] != "info"]
    assert [one["code"] for one in found] == ["ND506"]
    line = found[0]["culprit"]["location"]["line"]
    assert line == line_of(tmp_path / "train.py", "second = torch.optim")


def test_another_optimizer_alone_is_the_same_training(tmp_path: Path) -> None:
    """Phases that take turns would else be trainings without end; but nothing is compared across
    them."""
    report, err = told(tmp_path, "same task")
    assert report["findings"] == [], err
    assert report["vitals"]["steps"] == 120


def test_a_new_head_is_another_training(tmp_path: Path) -> None:
    report, err = told(tmp_path, "new head")
    assert report["findings"] == [], err
    assert [one.split(",")[1] for one in report["run"]["trainings"]] == [" 60 steps", " 59 steps"]
