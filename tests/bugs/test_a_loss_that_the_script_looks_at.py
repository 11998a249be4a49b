"""Scripts that look whether their loss is finite, and leave when it is not, were told healthy: what is
never differentiated was no step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import math, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

how, sick, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)

    def forward(self, x):
        h = self.norm(self.a(x)).relu()
        return self.b(h / x[:, :1].abs().sign())


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
x = torch.randn(20 * 16, 8)
data = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16)


def train(epoch):
    total = 0.0
    for step, (inputs, labels) in enumerate(data):
        if sick <= 20 * epoch + step < last:
            inputs[3, 0] = 0
        loss = (net(inputs) - labels).square().mean()
        if how == "break" and not torch.isfinite(loss):
            print("stopping")
            break
        if how == "return" and not math.isfinite(loss.item()):
            return
        if how == "exit" and not math.isfinite(loss.item()):
            print("Loss is", loss.item())
            sys.exit(1)
        if how == "continue" and not torch.isfinite(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


for epoch in range(8):
    print(epoch, train(epoch))
    if how in ("break", "return") and 20 * epoch + 20 > sick:
        break
print("the end")
"""


def report_of(path: Path, *words: str) -> dict[str, Any]:
    told = path.parent / "report.json"
    told.unlink(missing_ok=True)
    shown = ("--output-format", "json", "--output", told.name)
    done = nanodoc("run", *shown, path.name, "--", *words, cwd=path.parent)
    assert told.exists(), done.stderr
    bare = python(path.name, *words, cwd=path.parent)
    # a script whose very first step is sick is ended there
    assert bare.stdout.startswith(done.stdout) if words[1] == "0" else done.stdout == bare.stdout
    report: dict[str, Any] = json.loads(told.read_text())
    return report


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("how", ["break", "return", "exit"])
@pytest.mark.parametrize(
    "step", [0, 6, 19, 107]
)  # the last of its epoch; one watched by its losses
def test_the_step_that_it_left_for_its_loss(script: Path, how: str, step: int) -> None:
    report = report_of(script, how, str(step), "1000")
    finding = report["findings"][0]
    assert (finding["code"], finding["step"]) == ("ND202", step)
    line = line_of(script, "return self.b(h / x[:, :1].abs().sign())")
    assert finding["culprit"]["location"]["line"] == line
    assert finding["culprit"]["samples"] == [3]
    assert report["vitals"]["steps"] == step + 1
    again = ("replay", "--output-format", "json", report["artifacts"]["snapshot"])
    done = nanodoc(*again, cwd=script.parent)
    assert done.stdout, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert (finding["code"], finding["culprit"]["location"]["line"]) == ("ND202", line)


@pytest.mark.parametrize(("first", "last"), [(6, 9), (157, 1000)])
def test_bad_batches_that_it_leaves_out(script: Path, first: int, last: int) -> None:
    """Also where they are the very last."""
    report = report_of(script, "continue", str(first), str(last))
    assert report["verdict"] == "nothing found"
    assert report["vitals"]["steps"] == 160 - (min(last, 160) - first)


def test_more_bad_batches_than_anybody_leaves_out(script: Path) -> None:
    (script.parent / "out.txt").unlink(missing_ok=True)
    told = ("--output-format", "json", "--output", "report.json")
    nanodoc("run", *told, script.name, "--", "continue", "9", "1000", cwd=script.parent)
    finding = json.loads((script.parent / "report.json").read_text())["findings"][0]
    assert (finding["code"], finding["step"]) == ("ND202", 9)


OTHERS = """
import sys
import torch
from torch import nn

how = sys.argv[1]
torch.manual_seed(0)
net = nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), 1e-3)


def run(net, optimizer, sick, parts=1):
    for step in range(40):
        if how == "late" and step >= 30:
            break
        if how == "seldom" and step % 8:
            continue
        optimizer.zero_grad()
        left = False
        for part in range(parts):
            x = torch.randn(16, 8)
            if 3 * step + part == sick:
                x = x / x[:, :1].mul(0)
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            perplexity = torch.exp(1000 + loss)  # inf, with a graph, and of no interest
            if not torch.isfinite(loss):
                left = True
                break
            (loss / parts).backward()
        if left:
            break
        optimizer.step()
        print(step, loss.item())


if how in ("late", "seldom"):
    run(net, optimizer, -1)
elif how == "parts":
    run(net, optimizer, 31, parts=3)
elif how == "raise":
    run(net, optimizer, 30)
    raise RuntimeError("diverged")
else:
    run(net, optimizer, 30)
    other = nn.Linear(8, 1)
    run(other, torch.optim.SGD(other.parameters(), 1e-3), -1)
print("the end")
"""


@pytest.mark.parametrize("how", ["late", "seldom"])
def test_what_is_not_finite_and_no_loss(tmp_path: Path, how: str) -> None:
    """Loops that are left, or whose iterations are, for other reasons."""
    path = tmp_path / "train.py"
    path.write_text(OTHERS)
    report = report_of(path, how, "1")
    assert report["verdict"] == "nothing found"
    assert report["vitals"]["steps"] == (30 if how == "late" else 5)


@pytest.mark.parametrize("how", ["parts", "raise", "two"])
def test_ways_to_end_a_training(tmp_path: Path, how: str) -> None:
    """In one of several micro-batches; an exception comes behind the loop; another training does."""
    path = tmp_path / "train.py"
    path.write_text(OTHERS)
    told = ("--output-format", "json", "--output", "report.json")
    nanodoc("run", *told, path.name, "--", how, cwd=tmp_path)
    finding = json.loads((tmp_path / "report.json").read_text())["findings"][0]
    assert (finding["code"], finding["step"]) == ("ND202", 10)
    line = line_of(path, "x = x / x[:, :1].mul(0)")
    assert finding["culprit"]["location"]["line"] == line
