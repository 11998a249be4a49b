"""ND153: inputs and labels in different random orders, as people write it, and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import marked, nanodoc

TRAIN = """
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

def make():
    y = np.repeat(np.arange(3), 40)
    return (y[:, None] + 0.3 * np.random.randn(120, 4)).astype("float32"), y

class Rows(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __len__(self):
        return len(self.x)
    def __getitem__(self, index):
        return self.x[index], self.y[index]

class Kept(Rows):
    def __init__(self):
        x, y = make()
        order = np.random.permutation(len(x))
        self.x = x[order]  # {kept}
        self.y = y
    def __getitem__(self, index):
        return self.x[index], self.y[index]

def build():
    torch.manual_seed(0)
    np.random.seed(0)
    x, y = make()
{data}
    model = nn.Linear(4, 3)
    return {{"model": model, "data": DataLoader(data, 16), "max_steps": 8,
            "loss_fn": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
            "optimizer": torch.optim.Adam(model.parameters(), 1e-2)}}
"""

APART = [
    "np.random.shuffle(x)\nnp.random.shuffle(y)  # apart\ndata = TensorDataset(torch.tensor(x), torch.tensor(y))",
    "rng = np.random.default_rng(0)\nx = rng.permutation(x)\ny = rng.permutation(y)  # apart\ndata = TensorDataset(torch.tensor(x), torch.tensor(y))",
    "order = torch.randperm(len(x))\nx = torch.from_numpy(x)[order]\ndata = Rows(x[:96], y[:96])\ny = y[order]",
    "x = x[np.random.permutation(120)]\ny = y[np.random.permutation(120)]  # apart\ndata = Rows(x, y)",
    "order = list(range(120))\nrandom.shuffle(order)\ny = y[order]  # apart\ndata = list(zip(x, y))",
    "table = {'x': x, 'y': y}\norder = np.random.permutation(120)\nx = table['x'][order]  # apart\ny = table['y']\ndata = Rows(x[:96], y[:96])",
    "data = Kept()",
]
TOGETHER = [
    "np.random.seed(1)\nnp.random.shuffle(x)\nnp.random.seed(1)\nnp.random.shuffle(y)\ndata = TensorDataset(torch.tensor(x), torch.tensor(y))",
    "state = np.random.get_state()\nnp.random.shuffle(x)\nnp.random.set_state(state)\nnp.random.shuffle(y)\ndata = Rows(x, y)",
    "random.Random(3).shuffle(x)\nrandom.Random(3).shuffle(y)\ndata = Rows(x, y)",
    "order = np.random.permutation(120)\nx = x[order]\ny = y[order]\ndata = Rows(x, y)",
    "order = np.random.permutation(120)\nx, y = x[order][:96], y[order][:96]\ndata = Rows(x, y)",
    "other = x[np.random.permutation(120)]\ndata = TensorDataset(torch.tensor(x), torch.tensor(y), torch.tensor(other))",
    "order = torch.randperm(120)\nback = torch.argsort(order)\nx = x[order]\nx = x[back]\ndata = Rows(x, y)",
    "train, test = torch.randperm(120)[:90], torch.randperm(120)[90:]\ndata = Rows(x[train], y[train])",
    "train, test = x[:90], x[90:]\ntrain = train[np.random.permutation(90)]\ndata = Rows(x, y)",
    "order = np.random.permutation(120)\nmixed = x[order]\nx = mixed\ny = y[order]\ndata = Rows(x, y)",
    "x = x[:, np.random.permutation(4)]\ndata = Rows(x, y)",
    "order = torch.randperm(120)\nx, y = x[order], y[order]\nx = (x - x.mean()) / x.std()\ndata = Rows(x[:96], y[:96])",
    "order = torch.randperm(120)\nx, y = x[order], y[order]\nx -= x.mean()\ndata = TensorDataset(torch.tensor(x), torch.tensor(y))",
    "both = list(zip(x, y))\nrandom.shuffle(both)\ndata = both",
]


def found(tmp_path: Path, data: str) -> list[Finding]:
    path = tmp_path / "train.py"
    lines = "".join(f"    {line}\n" for line in data.splitlines())
    path.write_text(TRAIN.format(data=lines, kept="apart" if "Kept" in data else "kept"))
    config = Config(device="cpu", snapshot_dir=str(tmp_path))
    report = run_training(f"{path}:build", config)
    return [finding for finding in report.findings if finding.code == "ND153"]


@pytest.mark.parametrize("data", APART)
def test_it_is_told_at_the_order_that_only_one_has(tmp_path: Path, data: str) -> None:
    (finding,) = found(tmp_path, data)
    line = finding.culprit.location
    assert line is not None
    if "# apart" in data or "Kept" in data:
        assert line.line == marked(tmp_path / "train.py", "apart")


@pytest.mark.parametrize("data", TOGETHER)
def test_rows_that_stay_together_are_silent(tmp_path: Path, data: str) -> None:
    assert not found(tmp_path, data)


LOOP = """
import torch
from torch import nn

def main():
    torch.manual_seed(0)
    y = torch.arange(3).repeat_interleave(40)
    x = y[:, None] + 0.3 * torch.randn(120, 4)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for epoch in range(2):
        order = torch.randperm(120)
        for i in range(0, 120, 24):
            chosen = order[i:i + 24]
            inputs, labels = {rows}
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

main()
"""


@pytest.mark.parametrize(
    ("rows", "told"),
    [("x[chosen], y[i:i + 24]", True), ("x[chosen], y[chosen]", False)],
)
def test_batches_that_a_script_cuts_itself(tmp_path: Path, rows: str, told: bool) -> None:
    (tmp_path / "train.py").write_text(LOOP.format(rows=rows))
    done = nanodoc(
        "run", "--output-format", "json", "--output", "report.json", "train.py", cwd=tmp_path
    )
    assert (tmp_path / "report.json").exists(), done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    codes = [finding["code"] for finding in report["findings"]]
    assert ("ND153" in codes) == told
