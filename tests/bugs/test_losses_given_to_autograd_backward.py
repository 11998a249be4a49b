"""`torch.autograd.backward(loss)` was not seen as a backward pass of a loss: the course of the
report was 0 throughout, and a NaN showed in the gradients alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import sys, torch
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(60):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    y = net(x)
    first = (y - x.sum(1, keepdim=True)).square().mean()
    scale = 0.0 if step == 50 and "sick" in sys.argv else 1.0
    second = (y.abs() * scale).log().mean() ** 2
    torch.autograd.backward([first, second] if "two" in sys.argv else first + second)
    optimizer.step()
"""


@pytest.mark.parametrize("word", ["one", "two"])
def test_they_are_the_course_and_the_symptom(tmp_path: Path, word: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    options = ("--output-format", "json", "--output", "report.json")
    nanodoc("run", *options, "train.py", "--", word, cwd=tmp_path)
    vitals = json.loads((tmp_path / "report.json").read_text())["vitals"]
    assert vitals["loss_first"] > 0.5
    nanodoc("run", *options, "train.py", "--", word, "sick", cwd=tmp_path)
    first = json.loads((tmp_path / "report.json").read_text())["findings"][0]
    assert (first["step"], first["phase"]) == (50, "forward")
    assert first["culprit"]["location"]["line"] == line_of(script, "(y.abs() * scale).log()")
