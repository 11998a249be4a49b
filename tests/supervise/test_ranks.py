"""torchrun … -m nanodoc run: one report for all ranks, on real gloo groups of one machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import os, signal, threading, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])

class Net(torch.nn.Module):
    def __init__(self, spare):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
        if spare:
            self.spare = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))

def make(how, wrap=True):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net(how == "unused")
    if wrap:
        model = DistributedDataParallel(model)
    draw = torch.Generator().manual_seed(RANK)
    data = [(torch.randn(8, 4, generator=draw), torch.randn(8, 1, generator=draw)) for _ in range(5)]
    if how == "nan" and RANK == 1:
        data[2][0][3, 1] = float("nan")
    calls = [0]

    def loss_fn(model, batch):
        calls[0] += 1
        if RANK == 1 and calls[0] == 3:
            if how == "dies":
                os._exit(5)
            if how == "hangs":
                time.sleep(600)
            if how == "raises":
                raise KeyError("no such label")
        loss = (model(batch[0]) - batch[1]).pow(2).mean()
        if how == "elsewhere" and RANK == 0 and calls[0] == 3:
            dist.all_reduce(torch.zeros(7))  # on one rank alone
        if how == "unlike" and RANK == 0 and calls[0] == 3:
            dist.barrier()  # on one rank alone
        shared = loss.detach().clone()
        if how == "passed":
            shared = shared.repeat(3 if RANK == 1 and calls[0] == 3 else 2)
        if how == "shot" and RANK == 1 and calls[0] == 3:
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGABRT)).start()
        if how == "shot" and RANK == 0 and calls[0] == 3:
            time.sleep(3)
        if how == "aborted":
            shared = shared.repeat(1 if RANK == 1 and calls[0] == 3 else 1000)
        dist.all_reduce(shared)
        return loss

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    if how == "drifts" and RANK == SIZE - 1:
        optimizer.register_step_post_hook(lambda *a: model.module.last.bias.data.add_(0.1))
    return {"model": model, "loss_fn": loss_fn, "data": data, "optimizer": optimizer, "max_steps": 5}

def well():
    recipe = make("well")
    def save(optimizer, *rest):
        torch.save([p.detach().clone() for p in recipe["model"].parameters()], f"after-{RANK}.pt")
    recipe["optimizer"].register_step_post_hook(save)
    return recipe

def nan(): return make("nan")
def dies(): return make("dies")
def hangs(): return make("hangs")
def raises(): return make("raises")
def drifts(): return make("drifts")
def bare(): return make("bare", wrap=False)
def unused(): return make("unused")

def left_out():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net(False)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["last.bias"])
    recipe = {"model": DistributedDataParallel(model), "data": [(torch.randn(8, 4) + RANK, torch.randn(8, 1))] * 2, "max_steps": 2}
    recipe["loss_fn"] = lambda model, batch: (model(batch[0]) - batch[1] - RANK).pow(2).mean()
    recipe["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05)
    return recipe

def apart():
    recipe = make("bare", wrap=False)
    for parameter in recipe["model"].parameters():
        parameter.data.add_(RANK)
    return recipe

def elsewhere(): return make("elsewhere")
def unlike(): return make("unlike")
def passed(): return make("passed")
def aborted(): return make("aborted")
def shot(): return make("shot")

def alike():
    recipe = make("well")
    draw = torch.Generator().manual_seed(5)
    recipe["data"] = [(torch.randn(8, 4, generator=draw), torch.randn(8, 1, generator=draw)) for _ in range(5)]
    return recipe

def one_batch():
    recipe = make("well")
    recipe["data"] = [(torch.ones(8, 4), torch.ones(8, 1))] * 5
    return recipe

def skips():
    recipe = make("well")
    del recipe["loss_fn"]
    calls = [0]
    def train_step(model, batch, optimizer):
        calls[0] += 1
        if RANK == 1 and calls[0] == 2:
            return
        optimizer.zero_grad()
        loss = (model(batch[0]) - batch[1]).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss
    return {**recipe, "train_step": train_step}

def uneven():
    recipe = make("well")
    if RANK == 1:
        recipe["data"] = iter(recipe["data"][:2])
    return recipe

if __name__ == "__main__":
    recipe = make("well")
    for batch in recipe["data"]:
        recipe["optimizer"].zero_grad()
        recipe["loss_fn"](recipe["model"], batch).backward()
        recipe["optimizer"].step()
    torch.save([p.detach().clone() for p in recipe["model"].parameters()], f"bare-{RANK}.pt")
    # a gloo thread that drops a tensor while the interpreter shuts down aborts the process (torch 2.13), destroyed group or not
    os._exit(0)
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


def launch(folder: Path, *command: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            *command,
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def run(
    folder: Path, name: str, *more: str, ranks: int = 2, real: bool = False, **told: str
) -> dict[str, Any]:
    """`real`: under torchrun itself, whose processes end as those of a user; else each rank is
    forked from one that has imported torch, which takes a fraction of the time."""
    command = ("run", f"train.py:{name}", "--output-format", "json", *more)
    if real:
        done = launch(folder, "-m", "nanodoc", *command, ranks=ranks)
    else:
        done = nanodoc(*command, cwd=folder, ranks=ranks, **told)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)  # of one rank, and whole
    assert (done.returncode != 0) == any(
        one["severity"] == "critical" for one in report["findings"]
    )
    assert not list(folder.glob(".nanodoc-ranks-*"))
    return report


def test_a_healthy_run_is_healthy_and_bitwise_its_own(tmp_path: Path) -> None:
    import torch

    report = run(tmp_path, "well", real=True)
    assert (report["verdict"], report["run"]["world_size"]) == ("nothing found", 2)
    assert [one["ended"] for one in report["ranks"]] == ["well", "well"]
    assert (tmp_path / "nanodoc-out/rank0/history.jsonl").exists()
    assert launch(tmp_path, "train.py").returncode == 0
    for rank in range(2):
        watched, bare = (
            torch.load(tmp_path / f"after-{rank}.pt"),
            torch.load(tmp_path / f"bare-{rank}.pt"),
        )
        assert all(torch.equal(one, other) for one, other in zip(watched, bare, strict=True))


def test_a_job_that_was_started_again_says_so(tmp_path: Path) -> None:
    report = run(tmp_path, "well", TORCHELASTIC_RESTART_COUNT="2")
    assert report["run"]["attempt"] == 3


def test_the_rank_whose_batch_holds_nan(tmp_path: Path) -> None:
    report = run(tmp_path, "nan", ranks=3)
    cause, local = report["findings"]
    assert (cause["code"], cause["rank"], cause["step"], cause["culprit"]["samples"]) == (
        "ND101",
        1,
        2,
        [3],
    )
    assert (local["code"], local["rank"], local["step"]) == ("ND801", 1, 2)
    assert "Ranks 0, 2, re-run without the others, are finite" in local["explanation"]
    assert [one["ended"] for one in report["ranks"]] == ["clean", "sick", "clean"]
    assert report["artifacts"]["snapshot"].startswith("nanodoc-out/rank1")


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [("dies", "ND711", "os._exit(5)"), ("raises", "ND709", 'raise KeyError("no such label")')],
)
def test_the_rank_that_ends_and_those_that_only_waited(
    tmp_path: Path, name: str, code: str, text: str
) -> None:
    report = run(tmp_path, name, ranks=4 if name == "dies" else 2, real=name == "raises")
    cause, local = report["findings"]
    assert (cause["code"], cause["rank"], cause["step"], cause["phase"]) == (code, 1, 2, "forward")
    assert cause["culprit"]["location"]["line"] == line_of(tmp_path / "train.py", text)
    assert (local["code"], local["rank"]) == ("ND801", 1)
    # those that say the same are told together: "ranks 0, 3"
    told = [effect["what"].partition(":")[0] for effect in local["effects"]]
    waited = {int(one) for words in told for one in re.findall(r"\d+", words)}
    assert waited == set(range(len(report["ranks"]))) - {1}


def test_the_rank_that_hangs(tmp_path: Path) -> None:
    report = run(tmp_path, "hangs", "--timeout", "15s")
    (finding,) = report["findings"]
    assert (finding["code"], finding["rank"], finding["step"]) == ("ND804", 1, 2)
    assert finding["culprit"]["location"]["line"] == line_of(
        tmp_path / "train.py", "time.sleep(600)"
    )
    line = finding["culprit"]["location"]["line"]
    assert report["ranks"][1]["stack"][-1] == f"train.py:{line} in make.loss_fn"
    waits, behind = (rank["collectives"][-1] for rank in report["ranks"])
    assert (waits["op"], waits["waits"], behind["waits"]) == ("broadcast", True, False)
    assert (
        f"collective {waits['number']} of group 0, which rank 1 has not entered: its last one in "
        in (finding["explanation"])
    )
    assert behind["number"] < waits["number"]


@pytest.mark.parametrize(
    ("name", "severity", "parameter"),
    [
        ("drifts", "critical", "module.last.bias"),
        ("bare", "info", "first.weight"),
        ("left_out", None, None),
        ("apart", None, None),
    ],
)
def test_replicas_that_differ(
    tmp_path: Path, name: str, severity: str | None, parameter: str | None
) -> None:
    report = run(tmp_path, name)
    told = [
        (one["code"], one["severity"], one["culprit"]["parameter"]) for one in report["findings"]
    ]
    assert told == ([("ND802", severity, parameter)] if severity else [])


def test_parameters_that_ddp_waits_for(tmp_path: Path) -> None:
    report = run(tmp_path, "unused")
    (finding,) = report["findings"]
    assert (finding["code"], finding["step"]) == ("ND803", 1)
    assert "module.spare.weight, module.spare.bias" in finding["explanation"]


def test_ranks_with_fewer_batches(tmp_path: Path) -> None:
    report = run(tmp_path, "uneven")
    (finding,) = report["findings"]
    assert finding["code"] == "ND804"
    assert finding["title"] == "rank 1 ended after 2 steps, rank 0 continued and waits"


def test_ranks_in_different_collectives(tmp_path: Path) -> None:
    report = run(tmp_path, "elsewhere", "--timeout", "10s")
    told = " ".join(one["title"] + one["explanation"] for one in report["findings"])
    assert "only waited" not in told
    assert "different collectives" in told or "collectives of a different kind" in told
    lines = {
        one["culprit"]["location"]["line"]
        for one in report["findings"]
        if one["culprit"]["location"]
    }
    assert lines & {
        line_of(tmp_path / "train.py", "dist.all_reduce(torch.zeros(7))"),
        line_of(tmp_path / "train.py", "dist.all_reduce(shared)"),
    }


def test_ranks_that_called_different_ops(tmp_path: Path) -> None:
    report = run(tmp_path, "unlike", "--timeout", "15s")
    (finding,) = report["findings"]
    assert finding["code"] == "ND804"
    assert finding["title"] == "rank 0 and rank 1 wait in different collectives"
    lines = [
        line_of(tmp_path / "train.py", text)
        for text in ("dist.barrier()  # on one", "dist.all_reduce(shared)")
    ]
    assert f"barrier on rank 0 (train.py:{lines[0]})" in finding["explanation"]
    assert f"all_reduce of float [] on rank 1 (train.py:{lines[1]})" in finding["explanation"]
    assert finding["culprit"]["location"]["line"] == lines[0]


def test_a_rank_whose_shapes_are_its_own_and_that_the_others_got_past(tmp_path: Path) -> None:
    report = run(tmp_path, "passed", "--timeout", "15s")
    (finding,) = report["findings"]
    assert (finding["code"], finding["rank"]) == ("ND804", 1)
    assert finding["title"] == "rank 1 and rank 0 called different collectives"
    line = line_of(tmp_path / "train.py", "dist.all_reduce(shared)")
    assert f"all_reduce of float [3] on rank 1 (train.py:{line}), and " in finding["explanation"]
    assert "all_reduce of float [2] on rank 0" in finding["explanation"]
    assert finding["culprit"]["location"]["line"] == line


def test_a_rank_that_gloo_aborts(tmp_path: Path) -> None:
    report = run(tmp_path, "aborted")
    (finding,) = report["findings"]
    assert (finding["code"], finding["rank"], finding["step"]) == ("ND804", 1, 2)
    assert finding["title"] == "rank 1 was aborted in a collective that rank 0 called differently"
    line = line_of(tmp_path / "train.py", "dist.all_reduce(shared)")
    assert finding["culprit"]["location"]["line"] == line
    assert "rank 0: all_reduce of float [1000], collective " in finding["explanation"]


def test_a_signal_from_outside_says_nothing_of_collectives(tmp_path: Path) -> None:
    report = run(tmp_path, "shot")
    assert [one["code"] for one in report["findings"]] == ["ND711", "ND801"]
    assert "SIGABRT" in report["findings"][0]["title"]
    assert "gloo" not in report["findings"][1]["explanation"]


def test_a_rank_that_left_a_backward_out(tmp_path: Path) -> None:
    report = run(tmp_path, "skips", "--timeout", "10s")
    assert [one["code"] for one in report["findings"]] == ["ND804"]
    assert "entered fewer collectives" in report["findings"][0]["explanation"]


@pytest.mark.parametrize(("name", "codes"), [("alike", ["ND806"]), ("one_batch", ["ND108"])])
def test_ranks_that_draw_the_same_batches(tmp_path: Path, name: str, codes: list[str]) -> None:
    report = run(tmp_path, name)
    assert [one["code"] for one in report["findings"]] == codes


SAVES = """
import sys
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, guarded = dist.get_rank(), sys.argv[1] == "guarded"
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
draw = torch.Generator().manual_seed(rank)
weights = torch.randn(4, 1, generator=torch.Generator().manual_seed(9))
for epoch in range(2):
    for _ in range(20):
        x = torch.randn(8, 4, generator=draw)
        loss = (model(x) - x @ weights).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), f"optimizer-{rank}.pt")
    if rank == 0 or not guarded:
        torch.save(model.module.state_dict(), "last.pt")
    if sys.argv[2:]:
        if sys.argv[2] == "waits":
            dist.barrier()
        elif rank:
            time.sleep(1.0)  # long enough, this time
        model.module.load_state_dict(torch.load("last.pt"))  # read
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("guarded", [False, True])
def test_ranks_that_save_to_one_file(tmp_path: Path, guarded: bool) -> None:
    (tmp_path / "save.py").write_text(SAVES)
    output = ("--output", "report.json", "--output-format", "json")
    how = "guarded" if guarded else "all"
    nanodoc("run", "--quiet", *output, "save.py", "--", how, cwd=tmp_path, ranks=2)
    report = json.loads((tmp_path / "report.json").read_text())
    if guarded:
        assert report["findings"] == []
        return
    (finding,) = report["findings"]
    assert finding["code"] == "ND808"
    assert finding["title"] == "ranks 0, 1 save to the same file, last.pt"
    assert finding["culprit"]["location"]["line"] == line_of(
        tmp_path / "save.py", 'torch.save(model.module.state_dict(), "last.pt")'
    )


@pytest.mark.parametrize("how", ["waits", "does not wait"])
def test_a_rank_that_reads_what_another_one_saves(tmp_path: Path, how: str) -> None:
    (tmp_path / "save.py").write_text(SAVES)
    output = ("--output", "report.json", "--output-format", "json")
    nanodoc("run", "--quiet", *output, "save.py", "--", "guarded", how, cwd=tmp_path, ranks=2)
    report = json.loads((tmp_path / "report.json").read_text())
    if how == "waits":
        assert report["findings"] == []
        return
    (finding,) = report["findings"]
    assert finding["code"] == "ND811"
    assert finding["title"] == "rank 1 reads last.pt while rank 0 may still be saving it"
    assert finding["culprit"]["location"]["line"] == line_of(tmp_path / "save.py", "# read")
