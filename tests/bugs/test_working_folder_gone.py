"""A recipe that has left for a folder that is gone ended nanodoc with an error of its own."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc

RECIPE = """
import os
import tempfile

import torch


def build():
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    os.chdir(folder)
    os.rmdir(folder)
    loss = lambda model, batch: model(batch).square().mean()
    return {"model": model, "loss_fn": loss, "data": [torch.randn(8, 4)], "optimizer": optimizer}
"""


def test_the_report_comes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPE)
    for more in ([], ["--in-process"]):
        run = nanodoc("run", "train.py:build", "--steps", "3", *more, cwd=tmp_path)
        assert "verdict: nothing found" in run.stdout, run.stdout + run.stderr
        assert "error of nanodoc" not in run.stdout
        assert run.returncode == 0
