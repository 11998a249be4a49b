"""Values that are not finite when they come out of the data are followed to the line that made
them: in a data set, in what built the data, in a module of the script's own, under NumPy as under
torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.diagnosis.finding import Finding
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

RECIPE = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

def trained(data, loss_fn=None):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1])
    return {"model": model, "data": data, "optimizer": optimizer, "loss_fn": loss_fn or loss}

RAW = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
LABELS = torch.arange(64) % 3
"""

OF_A_SAMPLE = """
class Rows(Dataset):
    def __init__(self):
        self.rows = RAW.copy()
        self.rows[37] = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = self.rows[index]
        top = np.abs(row).max()
        with np.errstate(all="ignore"):
            log = np.where(row > 0, np.log(np.abs(row) + 1e-6), 0)  # repaired in its own line
            scaled = row / top  # made
        mixed = scaled + 0 * log
        return torch.from_numpy(mixed).float(), int(LABELS[index])

def build():
    return trained(DataLoader(Rows(), 16))
"""
OF_A_TRANSFORM = """
def standardised(row):
    with np.errstate(all="ignore"):
        return (row - row.mean()) / row.std()  # made

class Rows(Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = self.transform(RAW[index] * (index != 20))
        return {"x": torch.from_numpy(row), "y": LABELS[index]}

def collate(samples):
    return [torch.stack([s["x"] for s in samples]), torch.stack([s["y"] for s in samples])]

def build():
    return trained(DataLoader(Rows(standardised), 16, collate_fn=collate))
"""
OF_BUILD = """
def standardised(raw):
    mean, spread = raw.mean(0), raw.std(0)
    return (raw - mean) / spread  # made

def build():
    raw = torch.from_numpy(RAW.copy())
    raw[:, 2] = 1.0
    mask = torch.full((6, 6), float("-inf"))  # not finite, and no part of the data
    table = {"raw": raw, "x": standardised(raw)}
    data = Subset(TensorDataset(table["x"], LABELS), range(8, 64))
    return trained(DataLoader(data, 16, shuffle=True))
"""
OF_A_LIST = """
def build():
    rows = RAW.copy()
    rows[40, 3] = float("nan")  # made
    tensor = torch.from_numpy(rows)
    batches = [(tensor[i : i + 16], LABELS[i : i + 16]) for i in range(0, 64, 16)]
    return trained(batches)
"""
OF_A_WEIGHT = """
def build():
    counts = torch.bincount(LABELS[LABELS < 2], minlength=3)
    weight = 1 / counts  # made
    weight = weight / weight.sum()
    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weight)
    data = TensorDataset(torch.from_numpy(RAW), LABELS)
    return trained(DataLoader(data, 16), loss)
"""


def _first(path: Path) -> Finding:
    report = run_training(f"{path}:build", Config(device="cpu", steps=12))
    assert report.findings, report.verdict
    return report.findings[0]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("recipe", [OF_A_SAMPLE, OF_A_TRANSFORM, OF_BUILD, OF_A_LIST, OF_A_WEIGHT])
def test_of_a_recipe(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(RECIPE + recipe)
    first = _first(path)
    assert first.code == "ND101"
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(path, "# made")
    assert "first read at" in dict(first.evidence)


MODULE = """
import torch

def table(count):
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(count, 6, generator=generator)
    rows[:, 2] = 0
    rows = rows / rows.amax(0)  # made
    return rows, torch.randint(0, 3, (count,), generator=generator)
"""
SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
import preparation

print("reading")
with open("log.txt", "a") as log:
    log.write("begun\\n")
x, y = preparation.table(int(sys.argv[1]) if len(sys.argv) > 1 else 64)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
LOOP
    loss = nn.functional.cross_entropy(model(rows), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOADED = """
parts = random_split(TensorDataset(x, y), [48, 16])
for rows, labels in DataLoader(parts[0], 16, shuffle=True):
"""
INDEXED = """
for step in range(5):
    chosen = torch.randint(0, 64, (16,))
    rows, labels = x[chosen], y[chosen]
"""


@pytest.mark.parametrize("loop", [LOADED, INDEXED])
def test_of_a_script(
    loop: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Its own modules run once more, too; what it prints and writes, it prints and writes once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "preparation", raising=False)
    path, module = tmp_path / "train.py", tmp_path / "preparation.py"
    path.write_text(SCRIPT.replace("LOOP", loop))
    module.write_text(MODULE)
    first = watched(path).findings[0]
    assert first.code == "ND101"
    assert first.culprit.location is not None
    assert first.culprit.location.file == module.name
    assert first.culprit.location.line == line_of(module, "# made")
    assert capfd.readouterr().out.count("reading") == 1
    assert (tmp_path / "log.txt").read_text() == "begun\n"
