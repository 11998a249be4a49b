"""A loss over what all ranks gather: a step that a rank can't run by itself, though its weights are
all its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.helpers import line_of, nanodoc

SCRIPT = """
import sys
import torch, torch.distributed as dist
import torch.distributed.nn as dnn
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)

class Encoder(nn.Module):
    broken = False

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 16)

    def forward(self, x):
        h = self.a(x).relu()
        if self.broken:
            h = h * 0
        return h / h.norm(dim=1, keepdim=True)

net = DistributedDataParallel(Encoder())
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(rank)
for step in range(10):
    x = torch.randn(16, 8, generator=draw)
    Encoder.broken = step == 6 and rank == 1 and "sick" in sys.argv
    a, b = net(torch.cat([x, x + 0.05 * torch.randn(16, 8, generator=draw)])).chunk(2)
    every = torch.cat(dnn.all_gather(b))
    loss = nn.functional.cross_entropy(a @ every.T / 0.1, torch.arange(16) + 16 * rank)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
open(f"weights{rank}.txt", "w").write(str([p.double().sum().item() for p in net.parameters()]))
dist.destroy_process_group()
"""


def run(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "train.py").write_text(SCRIPT)
    options = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *options, "train.py", "--", *words, cwd=folder, ranks=2)
    assert (folder / "report.json").exists(), done.stderr
    told: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return told


def test_it_trains_as_without_nanodoc(tmp_path: Path) -> None:
    report = run(tmp_path)
    files = [tmp_path / f"weights{rank}.txt" for rank in range(2)]
    watched = [file.read_text() for file in files]
    done = nanodoc("python", "train.py", cwd=tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    assert watched == [file.read_text() for file in files]
    assert report["verdict"] == "nothing found"


def test_the_rank_that_made_it_is_told(tmp_path: Path) -> None:
    """The buffers that all_gather fills held values of torch.empty, which were to blame before."""
    report = run(tmp_path, "sick")
    assert report["run"]["step_found"].endswith("step 6 re-run by all ranks together")
    first, second = report["findings"]
    assert (first["code"], first["rank"], first["step"]) == ("ND202", 1, 6)
    assert first["culprit"]["location"]["line"] == line_of(tmp_path / "train.py", "h / h.norm(")
    assert "float64" in [one["name"] for one in first["experiments"]]
    assert second["code"] == "ND801"
    assert [one["ended"] for one in report["ranks"]] == ["clean", "sick"]
