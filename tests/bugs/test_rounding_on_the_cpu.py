"""The backward pass of torch.prod differs in its last digits under a dispatch mode. A script with it
could not be traced: its first step, re-run, was "not the same", and a NaN ended in ND901."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import sys
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
noise = float(sys.argv[1])
for step in range(24):
    x = torch.randn(32, 6)
    if step == 12:
        x[5] = 40.0
    out = net(x)
    score = 1.2 + out.tanh().mean(1) - x.square().mean(1) / 100
    product = (1 + out.sigmoid() / 3).prod(dim=1)
    loss = (product * score ** 0.5).mean() + noise * torch.tensor(float(id(x) % 97))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_it_is_the_same_up_to_rounding_and_traced(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    nanodoc("run", "--output", "report.json", "train.py", "0", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["run"]["step_found"].endswith("replay of step 0 the same up to rounding")
    first = report["findings"][0]
    assert (first["code"], first["step"]) == ("ND201", 12)
    assert first["culprit"]["location"]["line"] == line_of(script, "score ** 0.5")


def test_what_differs_by_more_is_not_the_same(tmp_path: Path) -> None:
    noise = "float(time.perf_counter_ns() % 97)"
    text = SCRIPT.replace("float(id(x) % 97)", noise).replace("import sys", "import sys, time")
    (tmp_path / "train.py").write_text(text)
    done = nanodoc("run", "train.py", "1e-4", cwd=tmp_path)
    assert "replay of step 0 not the same" in done.stderr
