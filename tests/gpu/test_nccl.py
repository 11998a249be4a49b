"""Ranks that talk through NCCL, each with a GPU of its own, under torchrun: DDP and FSDP2. As many
as there are GPUs, be it one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import on_cuda
from tests.helpers import line_of

pytestmark = [
    *on_cuda,
    pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="no NCCL in this build"),
]

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

kind, words = sys.argv[1], sys.argv[2:]
rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(0)


class Net(nn.Module):
    broken = False

    def __init__(self):
        super().__init__()
        self.into, self.middle, self.out = nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, x):
        h = self.middle(self.into(x).relu()).relu()
        if self.broken:
            h = h / (h.sum() * 0)
        return self.out(h)


net = Net().to(device)
if kind == "fsdp2":
    fully_shard(net.middle)
    fully_shard(net)
    model = net
else:
    model = DistributedDataParallel(net, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
draw = torch.Generator().manual_seed(rank)
losses = []
for step in range(10):
    x = torch.randn(16, 8, generator=draw).to(device)
    Net.broken = "op" in words and step == 6
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
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


def torchrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    ranks = torch.cuda.device_count()
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    return subprocess.run(
        [sys.executable, *launcher, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        check=False,
    )


def watched(script: Path, *words: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    run = ("-m", "nanodoc", "run", *shown, *options, script.name, "--", *words)
    done = torchrun(*run, cwd=script.parent)
    assert report.exists(), done.stdout + done.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    return told


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_it_trains_as_without_nanodoc(script: Path, kind: str) -> None:
    report = watched(script, kind)
    known = (script.parent / "losses0.txt").read_text()
    done = torchrun(script.name, kind, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    assert (script.parent / "losses0.txt").read_text() == known
    assert report["verdict"] == "nothing found"
    assert report["vitals"]["steps"] == 10
    assert not [row for row in report["not_checked"] if "error of nanodoc" in row["why"]]


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_the_line_of_a_sick_op_and_its_replay(script: Path, kind: str) -> None:
    report = watched(script, kind, "op")
    finding = report["findings"][0]
    assert (finding["code"], finding["step"]) == ("ND202", 6)
    line = line_of(script, "h = h / (h.sum() * 0)")
    assert finding["culprit"]["location"]["line"] == line
    assert finding["experiments"]
    again = ("replay", "--output-format", "json", report["artifacts"]["snapshot"])
    done = subprocess.run(
        [sys.executable, "-m", "nanodoc", *again],
        capture_output=True,
        text=True,
        cwd=script.parent,
        timeout=120,
        check=False,
    )
    assert done.stdout, done.stderr
    finding = json.loads(done.stdout)["findings"][0]
    assert finding["culprit"]["location"]["line"] == line


COLLECTIVES = """
import json, os, time
from dataclasses import asdict

import torch, torch.distributed as dist
from nanodoc.heartbeat.flight_recorder import last_collectives

os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = os.environ["TORCH_FR_BUFFER_SIZE"] = "100"
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))


def told():
    print(json.dumps([asdict(one) for one in last_collectives()]), flush=True)


dist.all_reduce(torch.ones(3, device="cuda"))
torch.cuda._sleep(20_000_000_000)
dist.all_reduce(torch.ones(4, 5, device="cuda", dtype=torch.bfloat16))
dist.all_reduce(torch.ones(6, device="cuda"))
told()
torch.cuda.synchronize()
time.sleep(5)  # until torch's own watchdog has seen that they ended
told()
dist.destroy_process_group()
"""


def test_the_collective_that_a_rank_is_in(script: Path) -> None:
    """The host has entered the third, and the device waits in front of the second."""
    script.write_text(COLLECTIVES)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1")
    done = subprocess.run(
        [sys.executable, *launcher, script.name],
        capture_output=True,
        text=True,
        cwd=script.parent,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    waiting, ended = (json.loads(line) for line in done.stdout.splitlines() if line[:1] == "[")
    (one,) = (one for one in waiting if one["op"] == "all_reduce")
    assert (one["backend"], one["number"], one["entered"]) == ("nccl", 2, 3)
    assert (one["sizes"], one["types"], one["waits"]) == ([[4, 5]], ["BFloat16"], True)
    (one,) = (one for one in ended if one["op"] == "all_reduce")
    assert (one["number"], one["waits"]) == (3, False)
