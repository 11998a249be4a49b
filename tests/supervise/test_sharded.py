"""Trainings whose parameters are shards: FSDP2, FSDP1 and tensor parallel, on real gloo groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

kind, words = sys.argv[1], sys.argv[2:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

class Block(nn.Module):
    broken = False

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        h = self.up(x).relu()
        if self.broken:
            h = h / (h.sum() * 0)
        return x + self.down(h)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.blocks, self.out = nn.Linear(8, 16), nn.ModuleList([Block(), Block()]), nn.Linear(16, 1)

    def forward(self, x):
        x = self.into(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)

net = Net()
mesh = init_device_mesh("cpu", (size,))
if kind == "fsdp2":
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
elif kind == "fsdp1":
    net = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
else:
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=kind != "tensor")
draw = torch.Generator().manual_seed(0 if kind == "tensor" else rank)
losses = []
for step in range(10):
    x = torch.randn(16, 8, generator=draw)
    y = x.sum(1, keepdim=True)
    if "data" in words and rank == 1 and step == 6:
        x[3, 2] = float("nan")
    Block.broken = "op" in words and step == 6
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    if kind == "fsdp2":
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.item())
open(f"losses{rank}.txt", "w").write(str(losses))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, *options, script.name, "--", *words, cwd=script.parent, ranks=2)
    assert report.exists(), done.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    assert "not run again" in told["run"]["step_found"]
    return told


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "tensor"])
def test_it_trains_as_without_nanodoc(script: Path, kind: str) -> None:
    report = run(script, kind)
    watched = [(script.parent / f"losses{rank}.txt").read_text() for rank in range(2)]
    bare(script, kind)
    assert watched == [(script.parent / f"losses{rank}.txt").read_text() for rank in range(2)]
    assert report["verdict"] == "healthy"
    assert [one["ended"] for one in report["ranks"]] == ["well", "well"]
    assert report["vitals"]["steps"] == 10
    assert not [row for row in report["not_checked"] if "error of nanodoc" in row["why"]]


def bare(script: Path, kind: str) -> None:
    """Under nanodoc's own ranks, with everything that it does left out."""
    done = nanodoc("python", script.name, kind, cwd=script.parent, ranks=2)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("kind", "word", "code", "line"),
    [
        ("fsdp2", "data", "ND101", 'x[3, 2] = float("nan")'),
        ("fsdp2", "op", "ND202", "h = h / (h.sum() * 0)"),
        ("tensor", "op", "ND202", "h = h / (h.sum() * 0)"),
    ],
)
def test_the_rank_and_the_line(script: Path, kind: str, word: str, code: str, line: str) -> None:
    report = run(script, kind, word)
    told = report["findings"][0]
    assert (told["code"], told["step"]) == ("ND901", 6)
    assert "--trace-steps 6" in told["explanation"]
    if word == "data":
        assert [one["ended"] for one in report["ranks"]] == ["clean", "sick"]
        assert told["rank"] == 1
        assert "its loss is finite" in report["findings"][1]["explanation"]
    report = run(script, kind, word, options=("--trace-steps", "6"))
    found = report["findings"][0]
    assert (found["code"], found["step"]) == (code, 6)
    assert found["culprit"]["location"]["line"] == line_of(script, line)
    assert found["rank"] == (1 if word == "data" else 0)
