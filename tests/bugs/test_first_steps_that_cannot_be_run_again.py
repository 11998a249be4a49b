"""A rank that could not run its first step again left that to the others, whose second time had
collectives of the script's own: they met those of the next step, and the training went wrong. A
healthy first step that failed when it was run again left its rank without the others to the end,
and a training that was killed later was told as healthy. And gradients that a GradScaler's first scale made inf were told as sick in a script whose step can't be
run again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import PYTHON, nanodoc

RANKS = """
import subprocess, sys, threading, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
kept = None
if rank == 0 and {"thread", "gather"} & {*sys.argv}:
    threading.Thread(target=lambda: [time.sleep(0.05) for _ in range(10**6)], daemon=True).start()
if rank == 0 and "database" in sys.argv:
    import sqlite3
    kept = sqlite3.connect(":memory:")
torch.manual_seed(0)
net = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.01)
draw = torch.Generator().manual_seed(rank)
with open(f"losses{rank}-{sys.argv[2]}", "w") as losses:
    for step in range(5):
        x = torch.randn(16, 8, generator=draw)
        if step == 0 and ("all" in sys.argv or rank == 0 and "one" in sys.argv):
            subprocess.run(["true"], check=True)  # a second time it is not allowed
        loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
        if rank == 1 and "sick" in sys.argv:
            loss = loss * float("inf")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if "gather" in sys.argv:
            parts = [torch.zeros(()) for _ in range(2)] if rank == 0 else None
            dist.gather(torch.tensor(float(step)), parts, dst=0)
            assert parts is None or [part.item() for part in parts] == [step, step]
        if kept is not None:
            kept.execute("select 1")
        losses.write(f"{loss.item()!r}\\n")
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    losses.write(f"{total.item()!r} {net.module.weight.tolist()!r}\\n")
dist.destroy_process_group()
"""
SCALED = """
import sqlite3
import torch
from torch import nn
torch.manual_seed(0)
log = sqlite3.connect(":memory:")
log.execute("create table losses (loss)")
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
for step in range(20):
    x = 1e4 * torch.rand(32, 8)
    y = model(x)
    loss = (y - y.detach() - 1).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    log.execute("insert into losses values (?)", (loss.item(),))
assert 2.0**90 < scaler.get_scale() < 2.0**126
"""


KILLED = """
import os, signal, subprocess
import torch
from torch import nn

def train(steps):
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for step in range(steps):
        loss = net(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        FIRST
        if step == 20:
            os.kill(os.getpid(), signal.SIGKILL)

train(15)
train(30)
"""


def told(folder: Path, what: str, ranks: int = 2) -> dict[str, Any]:
    """The report of all ranks."""
    report = folder / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, "train.py", "--", what, "with", cwd=folder, ranks=ranks)
    assert report.exists(), done.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("what", ["thread", "gather", "database", "all", "one"])
def test_ranks_of_which_one_cannot(what: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    bare = nanodoc(PYTHON, "train.py", what, "bare", cwd=tmp_path, ranks=2)
    assert bare.returncode == 0, bare.stderr
    report = told(tmp_path, what)
    assert report["verdict"] == "nothing found"
    assert [rank["ended"] for rank in report["ranks"]] == ["well", "well"]
    for rank in range(2):
        assert (tmp_path / f"losses{rank}-with").read_text() == (
            tmp_path / f"losses{rank}-bare"
        ).read_text()


def test_a_sick_first_step_is_run_again_without_the_others(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    report = told(tmp_path, "sick")
    assert [finding["code"] for finding in report["findings"]] == ["ND204", "ND801"]
    lines = RANKS.splitlines()
    for finding in report["findings"]:
        line = finding["culprit"]["location"]["line"]
        assert lines[line - 1].strip() == 'loss = loss * float("inf")'
    assert report["findings"][1]["title"] == "rank 1 of 2 failed, rank 0 did not"


def test_the_first_scale_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCALED)
    report = told(tmp_path, "alone", ranks=1)
    assert report["run"]["step_found"].endswith("not re-run")
    assert report["findings"] == []


@pytest.mark.parametrize("first", ["pass", 'subprocess.run(["true"], check=True)'])
def test_a_training_that_is_killed_is_not_healthy(first: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KILLED.replace("FIRST", first))
    report = told(tmp_path, "alone", ranks=1)
    assert [finding["code"] for finding in report["findings"]] == ["ND711"]
    assert report["verdict"] == "failed"
