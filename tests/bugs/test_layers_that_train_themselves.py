"""Found by scripts/realcode: layers with an optimizer each, which train themselves in a loop of
their own, are found among other variables when the script is started for a replay, and had other
names there than in the snapshot."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch

class Layer(torch.nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=0.03)

    def forward(self, x):
        x = x / (x.norm(dim=1, keepdim=True) + 1e-4)
        x = x * torch.log(x - x)  # sick
        return torch.relu(x @ self.weight.T + self.bias)

    def train(self, good, bad):
        for step in range(4):
            good_out, bad_out = (self.forward(x).pow(2).mean(1) for x in (good, bad))
            loss = torch.log1p(torch.exp(torch.cat([2 - good_out, bad_out - 2]))).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return self.forward(good).detach(), self.forward(bad).detach()

class Net(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = []
        for number in range(len(sizes) - 1):
            self.layers.append(Layer(sizes[number], sizes[number + 1]))

    def train(self, good, bad):
        for number, layer in enumerate(self.layers):
            good, bad = layer.train(good, bad)

torch.manual_seed(0)
net = Net([12, 8, 8])
net.train(torch.rand(16, 12), torch.rand(16, 12))
"""


def test_the_step_is_the_same_in_a_replay(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    shown = ("--output-format", "json", "--output", "report.json")
    lines = []
    for command in (
        ("run", *shown, "train.py"),
        ("replay", *shown, "nanodoc-out/nanodoc-step0.pt"),
    ):
        done = nanodoc(*command, cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        report = json.loads((tmp_path / "report.json").read_text())
        lines.append(report["findings"][0]["culprit"]["location"]["line"])
    assert lines == [line_of(path, "# sick")] * 2
    assert report["run"]["reproduced"] == "bitwise"
