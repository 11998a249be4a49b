"""Lazy modules have parameters and buffers without values before their first forward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import diagnose, run_engine

SCRIPT = """
import torch
def build():
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d())
    return {"model": model, "loss_fn": lambda m, b: m(b).pow(2).sum(), "data": [torch.randn(5, 3)],
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 3}
"""


@pytest.mark.filterwarnings("ignore:.*Lazy modules.*:UserWarning")
def test_a_lazy_model_trains_under_watch() -> None:
    with open("train.py", "w") as file:
        file.write(SCRIPT)
    report = run_training("train.py:build", Config(device="cpu"))
    assert report.findings == ()
    assert report.run.steps_run == 3


@pytest.mark.filterwarnings("ignore:.*Lazy modules.*:UserWarning")
def test_a_lazy_model_that_fails_in_its_first_step() -> None:
    model = nn.Sequential(nn.LazyLinear(4, bias=False), nn.LazyBatchNorm1d())
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: m[0](b).pow(2).sum(1).sqrt().sum() + 0 * m(b).sum(),
        data=[torch.zeros(5, 3)],
    )
    assert diagnose(recipe)[0].name == "infinite-gradient"
    assert run_engine(recipe).evidence.reproduced == "bitwise"
