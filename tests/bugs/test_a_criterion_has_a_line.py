"""A criterion of torch's own is called by nanodoc, not by the user: its ops had no line at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

TRAIN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    data = [(torch.randn(5, 4), torch.full((5,), -100))]
{criterion}
"""
MADE = """
    loss = nn.CrossEntropyLoss()  # made
    return {"model": model, "criterion": loss, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 1}
"""
NAMED = """
    return {"model": model, "data": data, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 1,
            "criterion": nn.functional.cross_entropy}  # made
"""


@pytest.mark.parametrize("criterion", [MADE, NAMED])
def test_the_line_that_made_it_is_named(criterion: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAIN.format(criterion=criterion))
    finding = run_training(
        f"{path}:build", Config(device="cpu", snapshot_dir=str(tmp_path))
    ).findings[0]
    assert finding.name == "all-targets-ignored"
    assert finding.culprit.location is not None
    assert finding.culprit.location.line == line_of(path, "# made")
