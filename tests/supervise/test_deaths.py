"""Whatever happens to the training's process, there is a report: where it was, which line, and
nobody is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import fresh_nanodoc, gone, line_of, nanodoc, report_of

TRAIN = """
import ctypes, os, resource, signal, subprocess, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Layer(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.calls, self.linear = how, 0, torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        self.calls += 1
        if self.calls == 4:
            self.end()
        return y

    def end(self):
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "ended":
            subprocess.run(["kill", "-9", str(os.getpid())])
        if self.how == "crashed":
            ctypes.string_at(0)
        if self.how == "left":
            os._exit(7)
        if self.how == "hung":
            helper = subprocess.Popen(["sleep", "600"])
            print("helper", helper.pid, flush=True)
            time.sleep(600)
        if self.how == "memory":
            size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 28), size + (1 << 28)))
            torch.ones(1 << 28)

def make(how):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Layer(how), torch.nn.Linear(4, 1))
    data = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]
    return {"model": model, "criterion": torch.nn.MSELoss(), "data": data,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 8}

def killed(): return make("killed")
def crashed(): return make("crashed")
def left(): return make("left")
def hung(): return make("hung")
def memory(): return make("memory")
def healthy(): return make("healthy")
def while_built(): ctypes.string_at(0)

class Files(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        if index == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.full((4,), float(index)), torch.ones(1)

def workers():
    recipe = make("healthy")
    recipe["data"] = DataLoader(Files(), batch_size=4, num_workers=2)
    return recipe

class Remote(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index):
        if index == 13:
            time.sleep(500)  # a socket without a timeout
        return torch.full((4,), float(index)), torch.ones(1)

def remote():
    recipe = make("healthy")
    recipe["data"] = DataLoader(Remote(), batch_size=4, num_workers=2)
    return recipe

def once():
    if not os.path.exists("died"):
        open("died", "w").close()
        return make("ended")
    return make("healthy")

def ended(): return make("ended")
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


def run(
    folder: Path, name: str, *more: str, how: Callable[..., Any] = nanodoc
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    done = how("run", f"train.py:{name}", "--output-format", "json", *more, cwd=folder)
    return report_of(done), done


@pytest.mark.parametrize(
    ("name", "text", "how"),
    [
        ("killed", "os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("crashed", "ctypes.string_at(0)", "was killed by SIGSEGV"),
        ("left", "os._exit(7)", "exited with status 7"),
    ],
)
def test_a_process_that_dies_leaves_a_report(
    tmp_path: Path, name: str, text: str, how: str
) -> None:
    report, done = run(tmp_path, name)
    assert done.returncode == 1
    (finding,) = report["findings"]
    assert (finding["code"], finding["name"]) == ("ND711", "process-died")
    assert finding["title"] == f"the training process {how}"
    assert (finding["step"], finding["phase"], finding["culprit"]["module"]) == (3, "forward", "1")
    wanted = next(i for i, line in enumerate(TRAIN.splitlines(), 1) if text in line)
    assert finding["culprit"]["location"]["line"] == wanted
    assert finding["experiments"] == [
        {"name": "the same run again", "outcome": "ends in the same way", "loss": None}
    ]
    assert report["vitals"]["steps"] == 3
    assert report["vitals"]["loss_last"] is not None
    assert report["run"]["steps_requested"] == 8
    assert report["verdict"] == "failed"


def test_a_death_while_the_recipe_is_built(tmp_path: Path) -> None:
    report, done = run(tmp_path, "while_built")
    assert done.returncode == 1
    finding = report["findings"][0]
    assert (finding["code"], finding["phase"], finding["step"]) == ("ND711", "setup", None)
    assert finding["culprit"]["location"]["line"] == line_of(
        tmp_path / "train.py", "def while_built"
    )


def test_a_death_that_does_not_come_again_is_told_as_such(tmp_path: Path) -> None:
    report, _ = run(tmp_path, "once")
    finding = report["findings"][0]
    assert (finding["code"], finding["step"], finding["culprit"]["location"]) == ("ND711", 3, None)
    assert finding["experiments"][0]["outcome"] == "does not end in this way"
    again, _ = run(tmp_path, "ended")
    assert again["findings"][0]["culprit"]["location"]["line"] == line_of(
        tmp_path / "train.py", 'subprocess.run(["kill"'
    )
    assert {"label": "line known from", "value": "a second run"} in again["findings"][0]["evidence"]
    assert finding["confidence"] < again["findings"][0]["confidence"]


def test_no_second_run_without_a_budget(tmp_path: Path) -> None:
    report, _ = run(tmp_path, "killed", "--budget", "0")
    finding = report["findings"][0]
    assert finding["experiments"] == []
    assert any("--budget allows 0" in str(row["value"]) for row in finding["evidence"])


def test_a_hang_ends_in_a_report_and_nobody_is_left(tmp_path: Path) -> None:
    report, done = run(tmp_path, "hung", "--timeout", "6s")
    assert done.returncode == 1
    finding = report["findings"][0]
    assert (finding["code"], finding["step"], finding["phase"]) == ("ND712", 3, "forward")
    assert finding["culprit"]["location"]["line"] == line_of(
        tmp_path / "train.py", "time.sleep(600)"
    )
    assert finding["culprit"]["module"] == "1"
    assert gone(int(done.stderr.split("helper ")[1].split()[0]))


def test_a_limit_of_memory(tmp_path: Path) -> None:
    report, done = run(tmp_path, "memory")
    assert done.returncode == 1
    finding = report["findings"][0]
    assert (finding["code"], finding["step"]) == ("ND704", 3)
    assert finding["culprit"]["location"]["line"] == line_of(
        tmp_path / "train.py", "torch.ones(1 << 28)"
    )
    assert {"parameters", "batch"} <= {row["label"] for row in finding["evidence"]}
    assert "1 GiB" in finding["title"]


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    report, done = run(tmp_path, "workers")
    assert done.returncode == 1
    finding = report["findings"][0]
    assert (finding["code"], finding["phase"], finding["culprit"]["kind"]) == (
        "ND708",
        "data",
        "data",
    ), f"{finding['title']}: {finding['explanation']}; {done.stderr}"
    assert finding["culprit"]["dataset_indices"] == [21]
    wanted = [i for i, line in enumerate(TRAIN.splitlines(), 1) if "os.kill(os.getpid()" in line][1]
    assert finding["culprit"]["location"]["line"] == wanted
    assert finding["experiments"][0]["outcome"] == "ends in the same way"


def test_a_worker_that_hangs(tmp_path: Path) -> None:
    report, done = run(tmp_path, "remote", "--timeout", "5s", how=fresh_nanodoc)
    assert done.returncode == 1
    finding = report["findings"][0]
    assert (finding["code"], finding["phase"], finding["culprit"]["dataset_indices"]) == (
        "ND712",
        "data",
        [13],
    )
    assert "a socket without a timeout" in finding["culprit"]["location"]["code"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "nanodoc", "run", "train.py:hung"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stderr is not None
        helper = int(next(line for line in parent.stderr if line.startswith("helper")).split()[1])
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert children
        parent.send_signal(number)
        out, _ = parent.communicate(timeout=30)
    if number == signal.SIGTERM:
        assert parent.returncode == 130
        assert "3 of 8" in out
    assert all(gone(int(child)) for child in (*children, helper))


def test_the_training_has_the_same_result_in_a_child(tmp_path: Path) -> None:
    outside, _ = run(tmp_path, "healthy")
    inside, _ = run(tmp_path, "healthy", "--in-process")
    assert outside["vitals"]["loss_last"] == inside["vitals"]["loss_last"]
    assert (outside["verdict"], inside["verdict"]) == ("nothing found", "nothing found")


def test_the_parent_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['nanodoc', 'run', 'train.py:killed']\nfrom nanodoc.cli.app "
        "import main\ntry:\n    main()\nexcept SystemExit as e:\n    assert e.code == 1, "
        "e.code\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
