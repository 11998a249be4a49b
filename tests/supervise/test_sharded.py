"""Trainings whose parameters are shards: FSDP2, FSDP1, tensor parallel, and both over meshes of two
dimensions, on real gloo groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nanodoc.supervise.one_rank import group_of_one
from tests.helpers import line_of, nanodoc

SCRIPT = """
import os, sys, time
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
    broken = rooted = False

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        h = self.up(x).relu()
        if self.broken:
            h = h / (h.sum() * 0)
        if self.rooted:
            h = h + (h * 0).sqrt()
        return x + self.down(h)

class Net(nn.Module):
    corner = False

    def __init__(self):
        super().__init__()
        self.into, self.blocks, self.out = nn.Linear(8, 16), nn.ModuleList([Block(), Block()]), nn.Linear(16, 1)
        self.keep = torch.ones(16)
        self.keep[12] = 0

    def forward(self, x):
        x = self.into(x)
        if self.corner:  # one row of the first layer's gradient, which the last rank holds
            x = x + (x * self.keep).abs().sqrt()
        for block in self.blocks:
            x = block(x)
        return self.out(x)

net = Net()
names = ("outer", "inner")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names) if size == 4 else init_device_mesh("cpu", (size,))
if kind == "mesh":  # tensor parallel inside, FSDP2 outside
    for block in net.blocks:
        parallelize_module(block, mesh["inner"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["outer"])
    fully_shard(net, mesh=mesh["outer"])
elif kind in ("fsdp2", "plain", "hsdp"):
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
elif kind == "fsdp1":
    net = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
else:
    for block in net.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, foreach=kind not in ("tensor", "mesh"))
share = 0 if kind == "tensor" else mesh["outer"].get_local_rank() if kind == "mesh" else rank
draw = torch.Generator().manual_seed(share)
losses = []
for step in range(10):
    x = torch.randn(16, 8, generator=draw)
    y = x.sum(1, keepdim=True)
    if "data" in words and share == 1 and step == 6:
        x[3, 2] = float("nan")
    mine = "one" not in words or share == 0
    Block.rooted = "rooted" in words and step == 6 and mine
    Net.corner = "corner" in words and step == 6 and mine
    Block.broken = "op" in words and step == 6
    if "part" in words and rank == 0 and step == 6:
        with torch.no_grad():
            net.blocks[1].up.weight.to_local()[0] = 3e38
    if "drifts" in words and rank == 3 and step == 4:
        with torch.no_grad():
            net.blocks[0].up.weight.to_local().mul_(1.01)
    if "hangs" in words and rank == int(words[-1]) and step == 6:
        time.sleep(600)
    if "dies" in words and rank == 1 and step == 6:
        os._exit(9)
    optimizer.zero_grad()
    loss = (net(x) - y).square().mean()
    if "breaks" in words and loss.isnan():
        break
    if "skips" in words and not torch.isfinite(loss):
        continue
    if "raises" in words and loss.isnan():
        raise ValueError("loss is NaN")
    loss.backward()
    if "one" in words:  # an inf that is sent on purpose
        dist.all_reduce(torch.tensor(float("inf")), dist.ReduceOp.MIN)
    if "shard" in words and rank == 1 and step == 6:
        next(net.parameters()).grad.to_local().view(-1)[0] = float("inf")
    if kind == "fsdp2":
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    if "clip" in words:
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)  # of a part
    elif kind == "fsdp1":
        net.clip_grad_norm_(0.5)
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


RANKS = {"hsdp": 4, "mesh": 4}


def run(
    script: Path,
    *words: str,
    options: tuple[str, ...] = (),
    found: bool = True,
    ranks: int | None = None,
) -> dict[str, Any]:
    ranks = ranks or RANKS.get(words[0], 2)
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    words = (script.name, "--", *words)
    done = nanodoc("run", *shown, *options, *words, cwd=script.parent, ranks=ranks)
    assert report.exists(), done.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    assert not found or "not re-run" in told["run"]["step_found"]
    return told


@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "tensor", "hsdp", "mesh"])
def test_it_trains_as_without_nanodoc(script: Path, kind: str) -> None:
    report = run(script, kind)
    ranks = RANKS.get(kind, 2)
    watched = [(script.parent / f"losses{rank}.txt").read_text() for rank in range(ranks)]
    bare(script, kind)
    assert watched == [(script.parent / f"losses{rank}.txt").read_text() for rank in range(ranks)]
    assert report["verdict"] == "nothing found"
    assert [one["ended"] for one in report["ranks"]] == ["well"] * ranks
    assert report["vitals"]["steps"] == 10
    assert not [row for row in report["not_checked"] if "error of nanodoc" in row["why"]]


def bare(script: Path, kind: str) -> None:
    """Under nanodoc's own ranks, with everything that it does left out."""
    done = nanodoc("python", script.name, kind, cwd=script.parent, ranks=RANKS.get(kind, 2))
    assert done.returncode == 0, done.stderr


def on_one_rank(script: Path, *words: str) -> dict[str, Any]:
    """The report of a run that a launcher started with one process."""
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, script.name, "--", *words, cwd=script.parent, **group_of_one())
    assert report.exists(), done.stderr
    told: dict[str, Any] = json.loads(report.read_text())
    return told


@pytest.mark.parametrize("kind", ["fsdp2", "tensor"])
def test_on_one_rank_everything_is_looked_at(script: Path, kind: str) -> None:
    """A look at its gradients read DTensors as if they had memory, which ended the process."""
    report = on_one_rank(script, kind)
    watched = (script.parent / "losses0.txt").read_text()
    done = nanodoc("python", script.name, kind, cwd=script.parent, **group_of_one())
    assert done.returncode == 0, done.stderr
    assert watched == (script.parent / "losses0.txt").read_text()
    assert report["verdict"] == "nothing found"
    assert report["run"]["step_found"].endswith("replay of step 0 bitwise the same")
    left = [row["what"] for row in report["not_checked"]]
    assert left == ([] if kind == "fsdp2" else ["cross-sample leak"])


def test_on_one_rank_a_sick_step_is_tried_and_kept(script: Path) -> None:
    report = on_one_rank(script, "fsdp2", "op")
    found = report["findings"][0]
    assert (found["code"], found["step"]) == ("ND202", 6)
    assert "same again" in [one["name"] for one in found["experiments"]]
    snapshot = report["artifacts"]["snapshot"]
    done = nanodoc("replay", snapshot, "--output-format", "json", cwd=script.parent)
    assert done.stdout, done.stderr
    again = json.loads(done.stdout)
    assert again["findings"][0]["culprit"]["location"] == found["culprit"]["location"]
    assert again["run"]["reproduced"] == "bitwise"


@pytest.mark.parametrize(
    ("kind", "word", "code", "line"),
    [
        ("fsdp2", "data", "ND101", 'x[3, 2] = float("nan")'),
        ("fsdp2", "op", "ND202", "h = h / (h.sum() * 0)"),
        ("fsdp1", "op", "ND202", "h = h / (h.sum() * 0)"),
        ("tensor", "op", "ND202", "h = h / (h.sum() * 0)"),
        ("mesh", "data", "ND101", 'x[3, 2] = float("nan")'),
        ("mesh", "op", "ND202", "h = h / (h.sum() * 0)"),
    ],
)
def test_all_ranks_run_the_sick_step_again_together(
    script: Path, kind: str, word: str, code: str, line: str
) -> None:
    report = run(script, kind, word)
    assert report["run"]["step_found"].endswith("step 6 re-run by all ranks together")
    found = report["findings"][0]
    assert (found["code"], found["step"]) == (code, 6)
    assert found["culprit"]["location"]["line"] == line_of(script, line)
    ended = [one["ended"] for one in report["ranks"]]
    if word == "data":
        ranks = RANKS.get(kind, 2)
        assert ended == ["clean"] * (ranks // 2) + ["sick"] * (ranks // 2)
        assert found["rank"] == ranks // 2
        assert "finite; the non-finite values" in report["findings"][1]["explanation"]
    else:
        assert set(ended) == {"sick"}


@pytest.mark.parametrize(("kind", "word"), [("fsdp2", "data"), ("mesh", "op")])
def test_a_step_that_is_traced_while_it_runs(script: Path, kind: str, word: str) -> None:
    report = run(script, kind, word, options=("--trace-steps", "6"))
    assert report["run"]["step_found"].endswith("step 6 traced as it ran")
    found = report["findings"][0]
    assert (found["code"], found["step"]) == ({"data": "ND101", "op": "ND202"}[word], 6)


def test_an_overflow_in_one_part_of_a_layer(script: Path) -> None:
    """Of tensor parallel: it comes to the other rank out of a collective, which is not to blame."""
    report = run(script, "tensor", "part")
    assert [one["ended"] for one in report["ranks"]] == ["sick", "clean"]
    first, second = report["findings"]
    assert (first["code"], first["rank"], first["step"]) == ("ND204", 0, 6)
    assert first["culprit"]["location"]["line"] == line_of(script, "h = self.up(x).relu()")
    assert second["code"] == "ND801"
    assert "Rank 1: the values that went into the collectives are finite" in second["explanation"]


@pytest.mark.parametrize(
    ("kind", "ranks"), [("fsdp2", [0]), ("fsdp1", [0]), ("tensor", [0, 1]), ("mesh", [0, 1])]
)
def test_gradients_that_are_sick_where_the_loss_is_finite(
    script: Path, kind: str, ranks: list[int]
) -> None:
    """They are what all ranks came to together: the rank whose backward pass made them leads."""
    report = run(script, kind, "rooted", "one")
    first, *others = report["findings"]
    assert (first["code"], first["rank"], first["step"]) == ("ND301", 0, 6)
    line = line_of(script, "h = h + (h * 0).sqrt()")
    assert first["culprit"]["location"]["line"] == line
    sick = [one["rank"] for one in report["ranks"] if one["ended"] == "sick"]
    assert sick == ranks
    assert [one["code"] for one in others] == ([] if kind == "tensor" else ["ND801"])
    if kind in ("fsdp2", "tensor"):
        assert first["fixes"][0]["verified"], "one process with the whole model has tried it"


@pytest.mark.parametrize("kind", ["plain", "hsdp"])
def test_a_gradient_that_is_sick_in_one_shard_alone(script: Path, kind: str) -> None:
    """The rank that holds the shard goes on until the others, which have stepped, meet it; then all
    run the step again in which it began. The rank that made it holds none of it."""
    report = run(script, kind, "corner", "one")
    first, second = report["findings"]
    assert (first["code"], first["rank"], first["step"]) == ("ND301", 0, 6)
    line = line_of(script, "x = x + (x * self.keep).abs().sqrt()")
    assert first["culprit"]["location"]["line"] == line
    assert first["fixes"][0]["verified"]
    assert second["code"] == "ND801"
    assert second["explanation"].startswith("Rank 0 of ")
    sick = [one["ended"] for one in report["ranks"]]
    assert sick == ["sick"] + ["clean"] * (len(sick) - 1)
    assert report["vitals"]["steps"] == 7
    assert report["run"]["step_found"].endswith(
        "step 6 re-run by all ranks together, after other ranks had passed it"
    )
    folder = report["artifacts"]["snapshot"]
    again = nanodoc("replay", folder, cwd=script.parent, ranks=2) if kind == "plain" else None
    assert again is None or ("ND301" in again.stdout and "ND801" in again.stdout)


@pytest.mark.parametrize("kind", ["plain", "fsdp1", "tensor"])
def test_a_script_that_leaves_its_loop_where_its_loss_is_nan(script: Path, kind: str) -> None:
    report = run(script, kind, "op", "breaks")
    first = report["findings"][0]
    assert (first["code"], first["step"]) == ("ND202", 6)
    assert first["culprit"]["location"]["line"] == line_of(script, "h = h / (h.sum() * 0)")


def test_a_script_that_leaves_out_a_batch_on_all_ranks(script: Path) -> None:
    report = run(script, "plain", "op", "skips")
    assert report["verdict"] == "nothing found"
    assert report["vitals"]["steps"] == 9


@pytest.mark.parametrize("way", ["raises", "breaks"])
def test_a_script_that_ends_where_its_loss_is_nan(script: Path, way: str) -> None:
    """On all ranks, in the step behind the one in which one shard alone was sick."""
    report = run(script, "plain", "corner", "one", way)
    first, second = report["findings"]
    assert (first["code"], first["rank"], first["step"]) == ("ND301", 0, 6)
    assert second["code"] == "ND801"
    assert [one["ended"] for one in report["ranks"]] == ["sick", "clean"]


def test_a_gradient_that_the_training_writes_itself(script: Path) -> None:
    """Into the shard that one rank holds."""
    report = run(script, "plain", "shard")
    first, second = report["findings"]
    assert (first["rank"], first["step"]) == (1, 6)
    line = line_of(script, 'grad.to_local().view(-1)[0] = float("inf")')
    assert first["culprit"]["location"]["line"] == line
    effects = [effect["what"] for effect in first["effects"]]
    assert "parameter into.weight has a non-finite gradient, first at [8, 0]" in effects
    assert second["explanation"].startswith("Rank 1 of 2 made a non-finite value")
    assert [one["ended"] for one in report["ranks"]] == ["clean", "sick"]


def test_a_norm_that_several_ranks_add_up(script: Path) -> None:
    """The clip's norm, of a rank that neither made what is sick nor holds it, is not to blame."""
    report = run(script, "fsdp2", "corner", "one", ranks=3)
    assert [one["ended"] for one in report["ranks"]] == ["sick", "clean", "clean"]
    assert [one["code"] for one in report["findings"]] == ["ND301", "ND801"]


@pytest.mark.parametrize("kind", ["fsdp2", "mesh"])
def test_a_rank_that_dies(script: Path, kind: str) -> None:
    report = run(script, kind, "dies", found=False)
    first = report["findings"][0]
    assert (first["code"], first["rank"], first["step"]) == ("ND711", 1, 6)
    assert first["culprit"]["location"]["line"] == line_of(script, "os._exit(9)")
    assert report["run"]["steps_run"] == report["run"]["steps_requested"] == 6
    assert report["vitals"]["loss_first"] > report["vitals"]["loss_lowest"] > 0


@pytest.mark.parametrize(("kind", "rank"), [("fsdp2", 1), ("tensor", 0), ("mesh", 0), ("mesh", 3)])
def test_a_rank_that_hangs(script: Path, kind: str, rank: int) -> None:
    """On a mesh others wait for ranks that wait for it."""
    report = run(script, kind, "hangs", str(rank), options=("--timeout", "15"), found=False)
    first = report["findings"][0]
    assert first["code"] in ("ND712", "ND804")
    assert (first["rank"], first["step"]) == (rank, 6)
    assert first["culprit"]["location"]["line"] == line_of(script, "time.sleep(600)")


def test_a_rank_that_hangs_in_its_first_step(script: Path) -> None:
    script.write_text(
        SCRIPT.replace("int(words[-1]) and step == 6", "int(words[-1]) and step == 0")
    )
    report = run(script, "plain", "hangs", "1", options=("--timeout", "15"), found=False)
    first = report["findings"][0]
    assert (first["code"], first["rank"]) == ("ND804", 1)
    assert first["title"].startswith("rank 1 is stuck before the end of the first step")
    assert "in all_gather of float [89], collective 1 of group 0" in first["explanation"]


def test_a_replica_that_drifts(script: Path) -> None:
    """Of hybrid sharding: ranks 1 and 3 are meant to hold the same part."""
    (finding,) = run(script, "hsdp", "drifts")["findings"]
    assert finding["code"] == "ND802"
    assert finding["culprit"]["parameter"] == "blocks.0.up.weight (part 1)"
    assert finding["rank"] in (1, 3)


def test_a_clip_by_the_norm_of_a_part(script: Path) -> None:
    (finding,) = run(script, "fsdp1", "clip")["findings"]
    assert finding["code"] == "ND809"
    assert finding["culprit"]["location"]["line"] == line_of(script, "# of a part")
