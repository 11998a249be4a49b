"""An optimizer that build() made and replaced was kept alive by the watch over build(), and held
parameters that nobody steps: ND605 told of them that an optimizer holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training

RECIPE = """
import torch

def build():
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"backbone": torch.nn.Linear(4, 8), "head": torch.nn.Linear(8, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for parameter in model["backbone"].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model["backbone"].parameters(), lr=0.1)  # the frozen part
    x = torch.randn(16, 4)
    data = [(x, x.sum(1, keepdim=True))] * 30
    return {"model": model, "data": data, "optimizer": optimizer,
            "loss_fn": lambda m, b: torch.nn.functional.mse_loss(m["head"](m["backbone"](b[0])), b[1])}
"""


def test_it_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(RECIPE)
    report = run_training("train.py:build", Config(device="cpu", steps=12))
    first = report.findings[0]
    assert first.name == "parameter-not-in-optimizer"
    assert first.culprit.location is not None
    assert first.culprit.location.line == 10
