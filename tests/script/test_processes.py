"""A script that trains in processes it starts itself: each is watched, and one report is made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import line_of, nanodoc, python

SCRIPT = """
import os, socket, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.last(self.first(x).relu())

def train(rank, port, model=None, words=()):
    torch.manual_seed(0)
    net = model if model is not None else Net()
    if port:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=2)
        net = DistributedDataParallel(net)
    draw = torch.Generator().manual_seed(rank)
    x = torch.randn(64, 8, generator=draw)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=8, num_workers="workers" in words)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        for x, y in loader:
            loss = (net(x) - y).square().mean()
            if rank == 1 and epoch == 1:
                if "nan" in words:
                    loss = loss + torch.log(loss - loss)
                if "raise" in words:
                    raise KeyError("no such label")
                if "killed" in words:
                    os.kill(os.getpid(), 9)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    open(f"done{rank}.txt", "w").write(f"{loss.item()} {sum(p.sum() for p in net.parameters()).item()}")
    if port:
        dist.barrier()
        time.sleep(0.2)  # torch hangs where a group goes while its threads hold objects of Python's
        dist.destroy_process_group()

class Trains(mp.Process):
    def __init__(self, *given):
        super().__init__()
        self.given = given

    def run(self):
        train(*self.given)

def double(number):
    return 2 * number

if __name__ == "__main__":
    method, words = sys.argv[1], sys.argv[2:]
    if "ddp" in words:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        mp.start_processes(train, args=(port, None, words), nprocs=2, start_method=method)
    else:
        mp.set_start_method(method)
        with mp.Pool(1) as pool:
            print(pool.map(double, [1, 2]))
        torch.manual_seed(0)
        model = Net().share_memory() if "shared" in words else Net()
        kind = Trains if "class" in words else lambda *given: mp.Process(target=train, args=given)
        processes = [kind(rank, 0, model, words) for rank in range("one" in words, 2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        print([process.exitcode for process in processes])
    print("trained")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def run(script: Path, *words: str) -> tuple[str, dict[str, Any]]:
    report = script.parent / "report.json"
    shown = ("--output-format", "json", "--output", str(report))
    done = nanodoc("run", *shown, script.name, "--", *words, cwd=script.parent)
    assert report.exists(), done.stderr
    assert not list(script.parent.glob("rank*"))
    return done.stdout, json.loads(report.read_text())


def ordered(printed: str) -> list[str]:
    """The lines; those of gloo come first, since each rank prints its own when it is connected
    (torch 2.10)."""
    lines = printed.splitlines(keepends=True)
    by_gloo = [line for line in lines if line.startswith("[Gloo] Rank ")]
    return sorted(by_gloo) + [line for line in lines if line not in by_gloo]


def left(script: Path) -> list[str]:
    """What the processes wrote, and deletes it."""
    texts = []
    for path in sorted(script.parent.glob("done*.txt")):
        texts.append(path.read_text())
        path.unlink()
    return texts


@pytest.mark.parametrize(
    "words",
    [("spawn", "ddp"), ("fork", "ddp"), ("fork", "workers"), ("fork", "class")],
    ids=" ".join,
)
def test_everything_is_as_without_nanodoc(script: Path, words: tuple[str, ...]) -> None:
    bare = python(script.name, *words, cwd=script.parent)
    assert bare.returncode == 0, bare.stderr
    wanted = left(script)
    out, report = run(script, *words)
    assert (ordered(out), left(script)) == (ordered(bare.stdout), wanted)
    assert len(wanted) == 2
    assert report["verdict"] == "nothing found"
    found = report["run"]["step_found"]
    assert f"train.py:{line_of(script, 'for x, y in loader')}" in found
    assert found.endswith("bitwise the same")
    assert report["vitals"]["steps"] == 16
    if "ddp" in words:
        assert [one["ended"] for one in report["ranks"]] == ["well", "well"]
    else:
        assert len(report["run"]["trainings"]) == 2
    assert {path.parent.name for path in script.parent.rglob("history.jsonl")} == {
        "process1",
        "process2",
    }


@pytest.mark.parametrize("ddp", [True, False], ids=["ranks", "alone"])
@pytest.mark.parametrize(
    ("word", "code", "line"), [("nan", "ND206", "torch.log("), ("raise", "ND709", "raise KeyError")]
)
def test_what_goes_wrong_in_one_is_found_at_its_line(
    script: Path, word: str, code: str, line: str, ddp: bool
) -> None:
    out, report = run(script, "fork", word, *(["ddp"] if ddp else []))
    first, *others = report["findings"]
    assert (first["code"], first["step"]) == (code, 8)
    assert first["culprit"]["location"]["line"] == line_of(script, line)
    if ddp:
        assert [one["code"] for one in others] == ["ND801"]
        assert first["rank"] == 1
        assert "trained" not in out  # the script's own launcher ended it
    else:
        assert others == []
        assert "[0, 1]\ntrained" in out


def test_weights_that_several_train_are_never_put_back(script: Path) -> None:
    _, report = run(script, "fork", "shared")
    assert "re-run only if it fails" in report["run"]["step_found"]
    assert re.search("other processes share the memory of", str(report["not_checked"]))


def test_a_sick_step_of_shared_weights_is_run_again_on_copies_of_them(script: Path) -> None:
    _, report = run(script, "fork", "shared", "one", "nan")
    (found,) = report["findings"]
    assert (found["code"], found["step"]) == ("ND206", 8)
    assert found["culprit"]["location"]["line"] == line_of(script, "torch.log(")
    assert report["run"]["reproduced"] == "bitwise"


def test_a_process_that_leaves_no_report_is_told(script: Path) -> None:
    out, report = run(script, "fork", "killed")
    assert "[0, -9]" in out
    assert "process 2" in {row["what"] for row in report["not_checked"]}
