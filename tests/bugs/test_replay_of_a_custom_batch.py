"""A batch of a class that a snapshot cannot hold was replaced by the data's first batch, and the
replay was healthy. It is drawn again by the indices of its samples, or the replay refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.errors import UsageError
from nanodoc.pipeline.replay import replay_snapshot
from nanodoc.pipeline.run import run_training

RECIPE = """
import torch
from torch.utils.data import DataLoader

class Graph:
    def __init__(self, x):
        self.x = x
    def to(self, device):
        return Graph(self.x.to(device))

rows = torch.ones(12, 3)
rows[9] = float("nan")

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    data = DataLoader(list(rows), batch_size=3, collate_fn=lambda r: Graph(torch.stack(r)))
    return {"model": model, "data": DATA, "loss_fn": lambda m, b: m(b.x).mean(),
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
"""


def snapshot_of(folder: Path, data: str) -> Path:
    (folder / "train.py").write_text(RECIPE.replace("DATA", data))
    report = run_training("train.py:build", Config(device="cpu", snapshot_dir=str(folder)))
    assert report.artifacts["snapshot"] is not None
    return Path(report.artifacts["snapshot"])


def test_it_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report = replay_snapshot(snapshot_of(tmp_path, "data"), Config(device="cpu"))
    assert report.run.reproduced == "bitwise"
    assert report.findings[0].culprit.dataset_indices == (9,)


def test_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snapshot = snapshot_of(tmp_path, "[Graph(rows[i : i + 3]) for i in range(0, 12, 3)]")
    with pytest.raises(UsageError, match="of a class that a snapshot cannot hold"):
        replay_snapshot(snapshot, Config(device="cpu"))
