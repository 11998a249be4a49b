"""Do the ranks of a training come to the mean of their gradients? On real gloo groups: whoever
divides by the number of ranks twice, or nowhere, is told, and whoever does it once in whatever way
is not."""

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
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

how = sys.argv[1]
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
ddp = how.startswith("ddp")
norm = [nn.BatchNorm1d(32)] if "norm" in how else []
net = nn.Sequential(nn.Linear(8, 32), *norm, nn.ReLU(), nn.Linear(32, 4))
broadcast = "own buffers" not in how
model = DistributedDataParallel(net, broadcast_buffers=broadcast) if ddp else net
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
draw = torch.Generator().manual_seed(rank)


def average_gradients():
    if ddp:
        return
    for p in net.parameters():
        if "AVG" in how:
            p.grad.mul_(0.5)
            dist.all_reduce(p.grad)
            continue
        dist.all_reduce(p.grad, op=dist.ReduceOp.SUM)  # sums
        if how == "by hand":
            p.grad /= world_size


for step in range(12):
    x = torch.randn(16, 8, generator=draw)
    if how.endswith("other shares"):
        x = x + 6 * rank
    y = x[:, :4].argmax(1)
    optimizer.zero_grad()
    if how.startswith("ddp, padding"):  # by rank: most labels, or few of them, are ignored
        y[4 + 8 * rank if how.endswith("of ranks") else 8 :] = -100
    loss = F.cross_entropy(model(x), y, reduction="sum" if how == "sum of samples" else "mean")
    if how in ("ddp and the loss", "the loss by hand"):
        loss = loss / world_size  # divides the loss
    if how == "sum of samples":
        loss = loss / (16 * world_size)
    if how == "ddp, two losses":
        loss = (loss + F.mse_loss(model(x), torch.zeros(16, 4))) / 2
    loss.backward()
    average_gradients()
    if how == "ddp and the gradients":
        for p in net.parameters():
            p.grad.div_(world_size)  # divides gradients
    if how == "ddp, clipped":
        nn.utils.clip_grad_norm_(net.parameters(), 0.3)
    optimizer.step()
    if how == "ddp, changed" and rank == 1 and step == 5:
        net[0].bias.data.add_(1.0)
dist.destroy_process_group()
if rank == 0:
    net[0].weight.data.mul_(0.9)  # by itself: nobody is meant to have the same any more
"""


def run(folder: Path, how: str, ranks: int = 2) -> tuple[Path, list[dict[str, Any]]]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    report = folder / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, script.name, "--", how, cwd=folder, ranks=ranks)
    assert report.exists(), done.stderr
    told = json.loads(report.read_text())
    assert not [row for row in told["not_checked"] if "error of nanodoc" in row["why"]]
    return script, told["findings"]


@pytest.mark.parametrize(
    ("how", "mark", "words"),
    [
        ("ddp and the loss", "divides the loss", "divided by the number of ranks twice"),
        ("ddp and the gradients", "divides gradients", "divided by the number of ranks twice"),
        ("by hand, summed", "sums", "summed over 2 ranks and never divided"),
    ],
)
def test_it_is_told_at_its_line(how: str, mark: str, words: str, tmp_path: Path) -> None:
    script, (finding,) = run(tmp_path, how)
    assert finding["code"] == "ND810"
    assert words in finding["title"]
    assert finding["culprit"]["location"]["line"] == line_of(script, f"# {mark}")


@pytest.mark.parametrize(
    "how",
    [
        "ddp",
        "by hand",
        "by hand, AVG",
        "the loss by hand",
        "sum of samples",
        "ddp, two losses",
        "ddp, clipped",
        "ddp, padding",
        "ddp, norm, own buffers",
        "ddp, norm, other shares",
    ],
)
def test_whoever_divides_once_is_left_alone(how: str, tmp_path: Path) -> None:
    assert not run(tmp_path, how)[1]


def test_means_over_unequal_numbers_of_labels(tmp_path: Path) -> None:
    script, (finding,) = run(tmp_path, "ddp, padding of ranks")
    assert (finding["code"], finding["severity"]) == ("ND812", "info")
    assert finding["title"] == "a label on rank 0 weighs 3 times as much as one on rank 1"
    assert finding["culprit"]["location"]["line"] == line_of(script, "loss = F.cross_entropy(")


def test_running_statistics_that_drift_apart(tmp_path: Path) -> None:
    _, (finding,) = run(tmp_path, "ddp, norm, own buffers, other shares")
    assert (finding["code"], finding["severity"]) == ("ND813", "info")
    assert finding["culprit"]["module"] == "1"


def test_replicas_that_had_diverged_when_the_group_ended(tmp_path: Path) -> None:
    _, (finding,) = run(tmp_path, "ddp, changed")
    assert finding["code"] == "ND802"
    assert finding["title"] == (
        "something writes to the weights of rank 1 after the optimizer's step"
    )
    assert (finding["step"], finding["culprit"]["parameter"]) == (5, "module.0.bias")


@pytest.mark.parametrize("how", ["accumulates", "halves"])
def test_a_loss_that_is_divided_by_as_many_as_there_are_ranks(how: str, tmp_path: Path) -> None:
    """By the number of micro-batches, or by a 2 that is in the formula."""
    script = SCRIPT.replace(
        "    optimizer.zero_grad()\n", "    if not accumulated:\n        optimizer.zero_grad()\n"
    )
    script = script.replace("losses = []", "").replace(
        "for step in range(12):\n", "steps = 2\nfor step in range(24):\n    accumulated = False\n"
    )
    if how == "accumulates":
        script = script.replace("accumulated = False", "accumulated = step % 2")
        script = script.replace("    loss.backward()", "    (loss / steps).backward()")
        script = script.replace(
            "    optimizer.step()\n", "    if accumulated:\n        optimizer.step()\n"
        )
    else:
        script = script.replace("    loss.backward()", "    (loss / 2).backward()")
    (tmp_path / "train.py").write_text(script)
    output = ("--output", "report.json", "--output-format", "json")
    nanodoc("run", "--quiet", *output, "train.py", "--", "ddp", cwd=tmp_path, ranks=2)
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == []


def test_the_best_weights_are_loaded_before_the_group_ends(tmp_path: Path) -> None:
    ending = "if rank == 0:\n    net.load_state_dict({k: v * 0.9 for k, v in net.state_dict().items()})\n"
    script = SCRIPT.replace(
        "dist.destroy_process_group()\n", ending + "dist.destroy_process_group()\n"
    )
    (tmp_path / "train.py").write_text(script)
    output = ("--output", "report.json", "--output-format", "json")
    nanodoc("run", "--quiet", *output, "train.py", "--", "ddp", cwd=tmp_path, ranks=2)
    assert json.loads((tmp_path / "report.json").read_text())["findings"] == []
