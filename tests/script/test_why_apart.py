"""A script's first step that does not come to the same when it is run again: the report says by how
much, and why: chance, a value that is not put back, or nanodoc's watching."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

TRAINING = """
import os
import time
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(30):
    x = torch.randn(16, 4)
    y = net(x)
    {line}
    loss = (y - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CASES = {
    "a generator that takes its seed from the system": (
        "g = torch.Generator(); g.seed(); y = y + torch.empty(16, 1).normal_(generator=g)",
        "it differs by chance, first in `normal_` at {place}",
    ),
    "a clock": (
        "y = y + torch.full_like(y, 1e-3 * (time.perf_counter_ns() % 1000))",
        "it reads what changes from run to run and is not put back, as a clock, a file, or a"
        " library's state: first `full_like` at {place} got another value",
    ),
    "code that looks for modes": (
        "y = y * 1.5 if _get_current_dispatch_mode() is None else y",
        "it is the same without nanodoc's watching",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_is_told(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line, told = CASES[case]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(TRAINING.replace("{line}", line), encoding="utf-8")
    report = watched(path)
    notes = " ".join(" ".join(part) for part in report.not_checked)
    assert "the first step did not reproduce when it was re-run: its loss was" in notes
    assert told.format(place=f"train.py:{line_of(path, line)}") in notes
