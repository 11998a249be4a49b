"""Pipeline stages: each rank has a part of the model, and is sent what the one before it computes.
A rank may have no loss of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

words = sys.argv[1:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)

class Part(nn.Module):
    broken = False

    def __init__(self, first, last):
        super().__init__()
        self.into = nn.Linear(8, 32) if first else nn.Identity()
        self.mid = nn.Linear(32, 32)
        self.out = nn.Linear(32, 1) if last else nn.Identity()

    def forward(self, x):
        h = self.mid(self.into(x)).relu()
        if self.broken:
            h = h / (h.sum() * 0)
        return self.out(h)

def loss_fn(out, y):
    return (out - y).square().mean()

part = Part(rank == 0, rank == size - 1)
stage = PipelineStage(part, rank, size, torch.device("cpu"))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_fn)
optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(0)
for step in range(10):
    x = torch.randn(16, 8, generator=draw)
    y = x.sum(1, keepdim=True)
    Part.broken = step == 6 and f"stage{rank}" in words
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=y)
    optimizer.step()
open(f"weights{rank}.txt", "w").write(str([p.double().sum().item() for p in part.parameters()]))
dist.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, *words: str) -> dict[str, Any]:
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, script.name, "--", *words, cwd=script.parent, ranks=2)
    assert report.exists(), done.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    return told


def test_it_trains_as_without_nanodoc(script: Path) -> None:
    report = run(script)
    files = [script.parent / f"weights{rank}.txt" for rank in range(2)]
    watched = [file.read_text() for file in files]
    done = nanodoc("python", script.name, cwd=script.parent, ranks=2)
    assert done.returncode == 0, done.stderr
    assert watched == [file.read_text() for file in files]
    assert report["verdict"] == "nothing found"
    assert report["vitals"]["steps"] == 10
    losses = [rank["loss"] for rank in report["ranks"]]
    assert losses[0] is None, "the first stage is sent gradients, and has no loss"
    assert losses[1] > 0


@pytest.mark.parametrize("stage", [0, 1])
def test_the_stage_that_made_it_is_told(script: Path, stage: int) -> None:
    """What a stage was sent is not its own, and a stage without a loss is followed back from what
    it sent."""
    report = run(script, f"stage{stage}")
    assert report["run"]["step_found"].endswith("step 6 re-run by all ranks together")
    first = report["findings"][0]
    assert (first["code"], first["rank"], first["step"]) == ("ND202", stage, 6)
    assert first["culprit"]["location"]["line"] == line_of(script, "h = h / (h.sum() * 0)")
    assert {one["code"] for one in report["findings"]} == {"ND202", "ND801"}
    ended = ["clean", "clean"]
    ended[stage] = "sick"
    assert [one["ended"] for one in report["ranks"]] == ended
    done = nanodoc(
        *("replay", "--output-format", "json", "nanodoc-out/nanodoc-step6"),
        cwd=script.parent,
        ranks=2,
    )
    first = json.loads(done.stdout)["findings"][0]
    assert first["culprit"]["location"]["line"] == line_of(script, "h = h / (h.sum() * 0)")
