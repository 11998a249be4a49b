"""Distillation whose optimizer was given the teacher's parameters: that the teacher runs under no_grad was
told as the cause, before the student's parameters, which are in no optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
import torch.nn.functional as F
from torch import nn


def recipe(learner):
    torch.manual_seed(0)
    nets = nn.ModuleDict({name: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
                          for name in ("teacher", "student")})
    optimizer = torch.optim.Adam(nets[learner].parameters(), 1e-3)

    def loss_fn(nets, batch):
        with torch.no_grad():
            wanted = nets["teacher"](batch).softmax(1)
        return F.kl_div(nets["student"](batch).log_softmax(1), wanted, reduction="batchmean")

    return dict(model=nets, loss_fn=loss_fn, optimizer=optimizer, data=list(torch.randn(20, 16, 6)),
                max_steps=20)


def sick():
    return recipe("teacher")


def healthy():
    return recipe("student")
"""


@pytest.mark.parametrize("build", ["sick", "healthy"])
def test_the_line_is_the_optimizers(tmp_path: Path, build: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(RECIPE)
    found = [f for f in run_training(f"{file}:{build}", Config()).findings if f.severity != "info"]
    assert [f.code for f in found] == (["ND506"] if build == "sick" else [])
    if found:
        assert found[0].culprit.location is not None
        assert found[0].culprit.location.line == line_of(file, "torch.optim.Adam(")
