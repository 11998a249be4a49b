"""Parameters that are frozen in the step by a helper, which was told to by its argument, had the
helper's line: it is that of its call that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of

RECIPE = """
import torch
from torch import nn


def set_requires_grad(net, requires_grad):
    for parameter in net.parameters():
        parameter.requires_grad = requires_grad


def freeze(net):
    for parameter in net.parameters():
        parameter.requires_grad = False  # by itself


def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)

    def train_step(model, batch, optimizer):
        {call}  # the call
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = [torch.randn(8, 4) for _ in range(6)]
    return dict(model=model, train_step=train_step, optimizer=optimizer, data=data)
"""


@pytest.mark.parametrize(
    ("call", "line"),
    [("set_requires_grad(model, False)", "# the call"), ("freeze(model)", "# by itself")],
)
def test_the_line_is_that_of_who_decided(tmp_path: Path, call: str, line: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(RECIPE.replace("{call}", call))
    found = run_training(f"{file}:build", Config()).findings[0]
    assert found.code == "ND501"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(str(file), line)
