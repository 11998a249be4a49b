"""Averages of the weights that a script copies into the model to look at it. torch_ema is no
dependency: a package of that name stands beside the script, with the methods that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import marked, nanodoc, python

LIBRARY = """
class ExponentialMovingAverage:
    def __init__(self, parameters):
        self.own = list(parameters)
        self.average = [p.detach().clone() for p in self.own]

    def update(self):
        for kept, p in zip(self.average, self.own):
            kept.lerp_(p.detach(), 0.1)

    def store(self):
        self.kept = [p.detach().clone() for p in self.own]

    def copy_to(self, parameters=None):
        for kept, p in zip(self.average, self.own):
            p.data.copy_(kept)

    def restore(self):
        for kept, p in zip(self.kept, self.own):
            p.data.copy_(kept)
"""
SCRIPT = """
import torch
from torch import nn
from torch_ema.ema import ExponentialMovingAverage

torch.manual_seed(0)
x = torch.randn(256, 10)
y = x.sum(1, keepdim=True)
model = nn.Linear(10, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
average = ExponentialMovingAverage(model.parameters())
for step in range(40):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    average.update()
    if step % 10 == 9:
        average.store()
        average.copy_to()  # copied
        print(float(nn.functional.mse_loss(model(x), y)))
        {behind}
"""


@pytest.mark.parametrize(("behind", "found"), [("pass", True), ("average.restore()", False)])
def test_what_is_copied_is_taken_out_again(behind: str, found: bool, tmp_path: Path) -> None:
    (tmp_path / "torch_ema").mkdir()
    (tmp_path / "torch_ema" / "__init__.py").touch()
    (tmp_path / "torch_ema" / "ema.py").write_text(LIBRARY)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(behind=behind))
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.stdout == bare.stdout
    told = re.findall(r"^(?:critical|warning)\[(\w+)\][^>]*--> train.py:(\d+)", done.stderr, re.M)
    assert told == ([("ND657", str(marked(script, "copied")))] if found else [])
