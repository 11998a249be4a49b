"""A script whose optimizer was given a head that another one has replaced since, all else frozen:
the old head, which nobody but nanodoc held any more, was taken for the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
from torch import nn

def train(model, optimizer):
    for _ in range(12):
        x, y = torch.randn(16, 6), torch.randint(2, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

torch.manual_seed(0)
net = nn.Sequential()
net.body, net.fc = nn.Linear(6, 8), nn.Linear(8, 10)
for parameter in net.parameters():
    parameter.requires_grad = {trains}
optimizer = torch.optim.SGD(net.{given}parameters(), lr=0.1)
net.fc = nn.Linear(8, 2)  # replaced
train(net, optimizer)
"""


@pytest.mark.parametrize(("trains", "given"), [("False", "fc."), ("True", "")])
def test_the_new_head_is_in_no_optimizer(tmp_path: Path, trains: str, given: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(trains=trains, given=given))
    options = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *options, "train.py", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    told = [(f["code"], f["culprit"]["location"]["line"]) for f in report["findings"]]
    assert told == [("ND507", line_of(path, "# replaced"))], done.stderr


TWO = """
import torch
from torch import nn

def main():
    torch.manual_seed(0)
    one, other = nn.Linear(4, 4), nn.Linear(4, 1)
    first = torch.optim.SGD(one.parameters(), lr=0.1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(12):
        x = torch.randn(8, 4)
        first.zero_grad()
        (one(x) - x).square().mean().backward()
        first.step()
        second.zero_grad()
        (other(one(x).detach())[:, 0] - x[:, 0]).square().mean().backward()
        second.step()

main()
"""


def test_a_network_that_waits_for_its_turn_is_held(tmp_path: Path) -> None:
    """By a variable of a function that runs, and by nothing else."""
    (tmp_path / "train.py").write_text(TWO)
    options = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *options, "train.py", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["findings"] == [], done.stderr
    assert report["run"]["step_found"].endswith("bitwise the same")
