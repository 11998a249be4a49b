"""Recipes whose model is sharded over several ranks: no rank runs a step again by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nanodoc.supervise.landlock import can_be_kept_from_writing
from tests.helpers import line_of, nanodoc

TRAIN = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x, keep=None):
        h = self.into(x)
        if keep is not None:  # one row of the first layer's gradient, which the last rank holds
            h = h + (h * keep).abs().sqrt()
        return self.out(h.relu())

def make(how):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    fully_shard(net)
    draw = torch.Generator().manual_seed(rank)
    data = []
    for step in range(10):
        x = torch.randn(16, 8, generator=draw)
        y = x.sum(1, keepdim=True)
        if how == "data" and rank == 1 and step == 6:
            x[3, 2] = float("nan")
        data.append((x, y, torch.tensor(how == "corner" and step == 6 and rank == 0)))
    keep = torch.ones(16)
    keep[12] = 0

    def train_step(model, batch, optimizer):
        optimizer.zero_grad()
        x, y, corner = batch
        loss = (model(x, keep if corner else None) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def loss_fn(model, batch):
        x, y, corner = batch
        return (model(x, keep if corner else None) - y).square().mean()

    step = {"train_step": train_step} if how == "data" else {"loss_fn": loss_fn}
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    return {"model": net, **step, "data": data, "optimizer": optimizer, "max_steps": 10}

def well(): return make("well")
def data(): return make("data")
def corner(): return make("corner")
"""


def run(folder: Path, name: str, *more: str) -> dict[str, Any]:
    (folder / "train.py").write_text(TRAIN)
    shown = ("--output-format", "json", *more)
    done = nanodoc("run", f"train.py:{name}", *shown, cwd=folder, ranks=2)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_healthy_one_is_healthy_and_its_report_whole(tmp_path: Path) -> None:
    """The looks at the end of a run ended the process with SIGSEGV here: first that of each rank,
    then that of the process with the whole model, after the leak check."""
    report = run(tmp_path, "well")
    assert (report["verdict"], report["interrupted"]) == ("nothing found", False)
    assert [one["steps"] for one in report["ranks"]] == [10, 10]
    told = {note["what"]: note["why"] for note in report["not_checked"]}
    if can_be_kept_from_writing():  # one process with the whole model has made all checks
        assert told == {}
    else:
        (why,) = (why for what, why in told.items() if what.startswith("experiments and fixes, "))
        assert why.startswith("steps are not re-run: they reach into.weig")


def test_the_rank_whose_batch_holds_nan(tmp_path: Path) -> None:
    """Of a train_step, whose optimizer has moved the weights when its step is judged."""
    report = run(tmp_path, "data")
    first, second = report["findings"]
    assert (first["code"], first["rank"], first["step"]) == ("ND101", 1, 6)
    assert first["culprit"]["location"]["line"] == line_of(
        tmp_path / "train.py", "h = self.into(x)"
    )
    assert first["culprit"]["samples"] == [3]
    assert first["fixes"][0]["verified"]
    assert (second["code"], second["rank"]) == ("ND801", 1)


def test_a_gradient_that_is_sick_in_one_shard_alone(tmp_path: Path) -> None:
    report = run(tmp_path, "corner")
    first = report["findings"][0]
    assert (first["code"], first["rank"], first["step"]) == ("ND301", 0, 6)
    line = line_of(tmp_path / "train.py", "h = h + (h * keep).abs().sqrt()")
    assert first["culprit"]["location"]["line"] == line
    assert first["fixes"][0]["verified"]
    assert [one["ended"] for one in report["ranks"]] == ["sick", "clean"]


def test_steps_that_are_traced_while_they_run(tmp_path: Path) -> None:
    """The rank whose batch holds NaN names it; one that only holds a sick part says whose it is."""
    first, second = run(tmp_path, "data", "--trace-steps", "6")["findings"]
    assert (first["code"], first["rank"], second["code"]) == ("ND101", 1, "ND801")
    (finding,) = run(tmp_path, "corner", "--trace-steps", "6")["findings"]
    assert (finding["code"], finding["rank"], finding["step"]) == ("ND901", 1, 6)
    assert "another rank produced them" in finding["explanation"]
