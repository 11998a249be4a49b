"""A loop over optimizers that gives each a closure, as skorch has it, was taken for the training's
loop: the batch was out of its sight."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
from torch import nn

class Trainer:
    def __init__(self):
        self.net = nn.Linear(4, 1)
        self.optimizer_ = torch.optim.Adam(self.net.parameters(), lr=1e-2)

    def step(self, closure):
        for name in ["optimizer"]:
            optimizer = getattr(self, name + "_")
            if closure is None:
                optimizer.step()
            else:
                optimizer.step(closure)

    def fit(self, batches):
        for x, y in batches:  # the loop
            def closure():
                self.optimizer_.zero_grad()
                loss = (self.net(x) - y).square().mean()
                loss.backward()
                return loss
            self.step(closure)

torch.manual_seed(0)
Trainer().fit([(torch.randn(8, 4), torch.randn(8)) for _ in range(12)])
"""


def test_the_loop_around_it_is_the_step(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    options = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *options, "train.py", cwd=tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    loop = line_of(path, "# the loop")
    assert f"train.py:{loop}" in report["run"]["step_found"], done.stderr
    assert [finding["code"] for finding in report["findings"]] == ["ND111"]
