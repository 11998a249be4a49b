"""A run that is ended from outside: SIGTERM gives the report of what was seen until then, as Ctrl-C
does, and after SIGKILL nothing of the training is left."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanodoc.supervise._guardian import end_tree
from tests.helpers import gone

RECIPE = """
import subprocess, time
import torch

def build(helper=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    def loss_fn(model, batch):
        time.sleep(0.02)
        return model(batch).pow(2).mean()
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(8, 4)],
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01), "max_steps": 100000}

def with_a_daemon():
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("helper", helper.pid, flush=True)
    return build()
"""
SCRIPT = """
import time
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
BEFORE
for step in range(100000):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    AFTER
"""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "nanodoc", "run", "--output-format", "json", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until_it_trains(folder: Path) -> None:
    history = folder / "nanodoc-out/history.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if history.exists() and len(history.read_text().splitlines()) > 5:
            return
        time.sleep(0.05)
    raise AssertionError("it does not train")


def terminated(process: subprocess.Popen[str], folder: Path) -> tuple[str, str]:
    with process:
        until_it_trains(folder)
        process.terminate()
        return process.communicate(timeout=60)


def test_a_recipe_that_is_terminated(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPE)
    process = started(tmp_path, "train.py:build")
    out, err = terminated(process, tmp_path)
    report = json.loads(out)
    assert process.returncode == 130, err
    assert report["interrupted"] is True
    assert report["run"]["steps_run"] > 5
    assert report["vitals"]["steps"] == report["run"]["steps_run"]


def test_a_script_that_is_terminated(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("BEFORE", "").replace("AFTER", ""))
    report_file = tmp_path / "report.json"
    process = started(tmp_path, "--output", str(report_file), "train.py")
    _, err = terminated(process, tmp_path)
    report = json.loads(report_file.read_text())
    assert process.returncode == 130, err
    assert report["interrupted"] is True
    assert report["run"]["step_found"].startswith("step train.py:8")
    assert report["vitals"]["steps"] > 5


def test_the_scripts_own_handler_is_asked_and_not_ours(tmp_path: Path) -> None:
    """It saves and leaves, as trainings do that are to be continued."""
    before = """
import signal
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
"""
    after = """if told:
        time.sleep(6)  # a large checkpoint
        open('saved', 'w').write(str(len(told)))
        raise SystemExit(3)
"""
    (tmp_path / "train.py").write_text(SCRIPT.replace("BEFORE", before).replace("AFTER", after))
    report_file = tmp_path / "report.json"
    process = started(tmp_path, "--output", str(report_file), "train.py")
    terminated(process, tmp_path)
    assert (tmp_path / "saved").read_text() == "1"  # it was told once
    assert json.loads(report_file.read_text())["vitals"]["steps"] > 5


def test_nothing_is_left_when_nanodoc_is_killed(tmp_path: Path) -> None:
    """Neither the training nor what it has started in a session of its own."""
    (tmp_path / "train.py").write_text(RECIPE)
    with started(tmp_path, "train.py:with_a_daemon") as process:
        assert process.stderr is not None
        helper = int(next(line for line in process.stderr if line.startswith("helper")).split()[1])
        until_it_trains(tmp_path)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert len(children) == 2
        process.kill()
        process.communicate(timeout=30)
    assert all(gone(int(number)) for number in (*children, helper))


@pytest.mark.skipif(sys.platform != "linux", reason="trees of processes are read from /proc")
def test_only_that_tree_is_ended() -> None:
    code = "import subprocess; p = subprocess.Popen(['sleep', '600'], start_new_session=True); "
    code += "print(p.pid, flush=True); p.wait()"
    command = [sys.executable, "-c", code]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as other,
    ):
        assert one.stdout is not None
        assert other.stdout is not None
        of_one, of_other = int(one.stdout.readline()), int(other.stdout.readline())
        try:
            end_tree(one.pid)
            assert one.wait(timeout=10) == -signal.SIGKILL
            assert gone(of_one)
            assert other.poll() is None
        finally:
            end_tree(other.pid)
        assert gone(of_other)
