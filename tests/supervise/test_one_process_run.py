"""A healthy run of a sharded model: the checks that re-run steps are made by one process that has
the whole model, which leaves nothing behind."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from nanodoc.supervise.landlock import can_be_kept_from_writing
from tests.helpers import line_of, nanodoc

pytestmark = pytest.mark.skipif(
    not can_be_kept_from_writing(), reason="this kernel can't keep a process from writing"
)

SCRIPT = """
import contextlib, json, os, sqlite3, sys, threading
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

words = sys.argv[1:]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,) if "pair" in words else (size,))
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
x = torch.randn(256, 12, generator=draw)
y = (x @ torch.randn(12, 4, generator=draw)).argmax(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x):
        h = self.a(x).relu()
        if "cut" in words:
            h = h.detach()
        h = self.b(h).relu()
        return self.c(h)


if "table" in words and rank == 0:
    table = sqlite3.connect("runs.db")
    table.execute("create table if not exists runs (ranks)")
    table.execute("insert into runs values (?)", (size,))
    table.commit()
if "thread" in words and rank == 0:
    def write():
        with contextlib.suppress(OSError), open("log.txt", "a") as log:
            log.write("once\\n")
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()

net = Net()
for part in (net.a, net.b, net.c):
    fully_shard(part, mesh=mesh)
fully_shard(net, mesh=mesh)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
data = TensorDataset(x, y)
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=16, sampler=sampler)
os.makedirs("out", exist_ok=True)
with open(f"out/started{rank}", "a") as started:
    started.write("once\\n")
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        if "sum" not in words:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "of rank", rank, flush=True)
    torch.save({"epoch": epoch}, f"out/new{rank}.pt")
    os.replace(f"out/new{rank}.pt", f"out/last{rank}.pt")
dist.destroy_process_group()
"""


def watched(folder: Path, *words: str, options: tuple[str, ...] = ()) -> tuple[dict[str, Any], str]:
    (folder / "train.py").write_text(SCRIPT)
    told = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *told, *options, "train.py", "--", *words, cwd=folder, ranks=2)
    assert (folder / "report.json").exists(), done.stdout + done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report, done.stdout


def not_made(report: dict[str, Any]) -> list[str]:
    return [row["what"] for row in report["not_checked"] if "examination" in row["what"]]


def test_every_rule_judges_a_healthy_run_and_nothing_is_left_behind(tmp_path: Path) -> None:
    report, said = watched(tmp_path)
    assert report["verdict"] == "nothing found"
    assert not report["findings"]
    assert not not_made(report)
    assert report["run"]["step_found"].endswith("not re-run, 16 steps also run by one process")
    for rank in (0, 1):
        assert (tmp_path / f"out/started{rank}").read_text() == "once\n"
        assert said.count(f"epoch 1 of rank {rank}") == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("started0", "started1", "last0.pt", "last1.pt"),
    }


@pytest.mark.parametrize(
    ("word", "code", "line"),
    [("cut", "ND501", "h = h.detach()"), ("sum", "ND608", "optimizer.step()")],
)
def test_a_bug_without_a_symptom(tmp_path: Path, word: str, code: str, line: str) -> None:
    report, _ = watched(tmp_path, word)
    finding = report["findings"][0]
    assert finding["code"] == code
    assert finding["culprit"]["location"]["line"] == line_of(tmp_path / "train.py", line)
    if word == "cut":  # no rank could see it
        seen = {row["label"]: row["value"] for row in finding["evidence"]}
        assert seen["seen"] == "in 16 steps that one process with the whole model ran"
        assert finding["fixes"][0]["verified"]


def test_what_python_cannot_mute_is_not_done_twice(tmp_path: Path) -> None:
    """By a library in C, and by a thread."""
    report, _ = watched(tmp_path, "table")
    with sqlite3.connect(tmp_path / "runs.db") as table:
        assert table.execute("select * from runs").fetchall() == [(2,)]
    assert not_made(report)
    report, _ = watched(tmp_path, "thread")
    assert (tmp_path / "log.txt").read_text() == "once\n"
    assert not not_made(report)


@pytest.mark.parametrize(
    ("words", "options", "why"),
    [
        (("pair",), (), "the training failed there"),
        ((), ("--budget", "0"), "no time was left (--budget 0s)"),
    ],
)
def test_where_they_are_not_made_the_report_says_so(
    tmp_path: Path, words: tuple[str, ...], options: tuple[str, ...], why: str
) -> None:
    report, _ = watched(tmp_path, *words, options=options)
    assert report["verdict"] == "nothing found"
    assert not_made(report)
    told = [
        row["why"] for row in report["not_checked"] if "checks that re-run steps" in row["what"]
    ]
    assert [why in one for one in told] == [True]
