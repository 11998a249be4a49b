"""SIGTERM that came while nanodoc's own code ran was no moment for the report, and was forgotten:
five seconds later the process was ended, and the report had no line of the step. Seen on a slow
machine, where a larger part of a step is a measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.supervise.test_signals import SCRIPT, started

BEFORE = """
import os, signal
import numpy as np
calls, get_bit_generator = [], np.random.get_bit_generator
def slow():  # nanodoc takes a random state; nothing else calls it here
    calls.append(1)
    if len(calls) == 12:
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(1)
    return get_bit_generator()
np.random.get_bit_generator = slow
"""


def told(folder: Path, *arguments: str) -> dict[str, Any]:
    """The report of a run that was terminated."""
    report_file = folder / "report.json"
    process = started(folder, "--output", str(report_file), *(arguments or ("train.py",)))
    with process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    report: dict[str, Any] = json.loads(report_file.read_text())
    return report


def test_the_report_is_made_as_soon_as_the_measurement_is_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("BEFORE", BEFORE).replace("AFTER", ""))
    report = told(tmp_path)
    assert report["interrupted"] is True
    assert report["run"]["step_found"].startswith("step train.py:")
    assert report["vitals"]["steps"] < 20


TWO = """
import os, signal, time
import torch
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        if os.path.exists("second"):  # nanodoc runs a step of the first training again
            os.kill(os.getppid(), signal.SIGTERM)
            until = time.monotonic() + 1
            while time.monotonic() < until:
                pass
        return super().forward(x)

def step(net, optimizer):
    loss = nn.functional.cross_entropy(net(torch.randn(64, 8)), torch.randint(0, 10, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

net = Net(8, 10)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(30):
    step(net, optimizer)
open("second", "w").close()
net = nn.Linear(8, 10)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(10**6):
    step(net, optimizer)
"""


def test_no_training_follows_one_that_was_to_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO)
    report = told(tmp_path)
    assert (report["interrupted"], report["vitals"]["steps"]) == (True, 30)


SICK = """
import os, signal, time
import torch
from torch import nn

calls = []

def loss_fn(net, x):
    calls.append(1)
    if len(calls) == 2:  # nanodoc runs the sick step again
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
    return (net(x).square().mean() - 1e3).sqrt()

def build():
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    return {"model": net, "loss_fn": loss_fn, "data": [torch.randn(8, 4)], "optimizer": optimizer}
"""


def test_a_sick_step_that_takes_longer_than_the_report_may(tmp_path: Path) -> None:
    """It was run again to its end, and the process was ended before: nothing was told."""
    (tmp_path / "train.py").write_text(SICK)
    report = told(tmp_path, "train.py:build", "--steps", "3")
    assert report["interrupted"] is True
    assert report["findings"]
    assert [path.name for path in tmp_path.glob("nanodoc-out/*.pt")] == ["nanodoc-step0.pt"]
