"""SIGTERM in a recipe's step that took longer than the report may (5 seconds): the step was waited
for, and the process was ended. The report held the losses of the steps before, and nothing of what
the watchers had seen of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bugs.test_sigterm_while_a_measurement_runs import told
from tests.supervise.test_signals import started

RECIPE = """
import os, signal, time
import torch
from torch import nn

AT, WHERE = {at}, {where!r}

def wait(step, where):
    if (step, where) == (AT, WHERE):
        os.kill(os.getppid(), signal.SIGTERM)
        for _ in range(600):  # as many operations, of which none takes long
            time.sleep(0.1)

def batches():
    for step in range(1000):
        wait(step, "data")
        yield torch.tensor([float(step)])

def loss_fn(net, x):
    wait(int(x), "loss_fn")
    return net(x).square().mean() + 1

def build():
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 1e-9)
    return {{"model": net, "loss_fn": loss_fn, "data": batches(), "optimizer": optimizer}}
"""


@pytest.mark.parametrize(
    ("at", "where"),
    # watched in full, watched by its loss alone, and the first: nothing was seen yet
    [(20, "loss_fn"), (20, "data"), (61, "loss_fn"), (0, "loss_fn")],
)
def test_the_steps_before_it_are_told(tmp_path: Path, at: int, where: str) -> None:
    (tmp_path / "train.py").write_text(RECIPE.format(at=at, where=where))
    report = told(tmp_path, "train.py:build", "--steps", "100")
    assert report["interrupted"] is True
    assert report["run"]["steps_run"] == report["vitals"]["steps"] == at
    assert not report["findings"]
    unchecked = {row["what"]: row["why"] for row in report["not_checked"]}
    assert unchecked[f"step {at}"] == "interrupted by SIGTERM"


def test_a_training_that_ignores_it_is_let_be(tmp_path: Path) -> None:
    """Its step was broken off when the report was asked for once more."""
    ignoring = "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    net ="
    recipe = RECIPE.format(at=20, where="loss_fn").replace("    net =", ignoring)
    (tmp_path / "train.py").write_text(recipe.replace("range(600)", "range(40)"))
    report_file = tmp_path / "report.json"
    arguments = "--output", str(report_file), "train.py:build", "--steps", "30"
    with started(tmp_path, *arguments) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert json.loads(report_file.read_text())["run"]["steps_run"] == 30
