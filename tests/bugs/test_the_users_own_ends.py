"""What the training does with signals, at its exit, with descriptors and its configuration is its
own, and stays as it would be without us."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import fresh_nanodoc, nanodoc, report_of

TRAIN = """
import atexit, ctypes, os, signal, sys, time
import torch

def build(config=None, step=lambda calls: None):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    calls = [0]
    def loss_fn(model, batch):
        calls[0] += 1
        step(calls[0])
        return model(batch).pow(2).mean()
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(4, 2)] * 3, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 6}

def at_exit():
    atexit.register(lambda: (time.sleep(7), open("flushed", "w").close()))
    return build()

def handler():
    signal.signal(signal.SIGUSR1, lambda *a: open("checkpoint", "w").close())
    def step(calls):
        if calls == 3:
            print("ready", flush=True)
            while not os.path.exists("checkpoint"):
                time.sleep(0.05)
    return build(step=step)

def waits():
    def step(calls):
        print("ready", flush=True)
        time.sleep(0.3)
    return build(step=step)

def closed():
    os.closerange(3, 256)
    return build()

def stale():
    signal.signal(signal.SIGTERM, lambda *a: None)
    def step(calls):
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        if calls == 4:
            ctypes.string_at(0)
    return build(step=step)
"""


@pytest.fixture(autouse=True)
def _train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)


def test_exit_handlers_run_to_their_end(tmp_path: Path) -> None:
    done = nanodoc("run", "train.py:at_exit", cwd=tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "flushed").exists()
    assert "waiting for the training process to exit" in done.stderr


def _send(folder: Path, name: str, number: signal.Signals, **options: object) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "nanodoc", "run", f"train.py:{name}"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )  # type: ignore[call-overload]  # by name
    with process:
        next(line for line in process.stderr if line.startswith("ready"))
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    return process.returncode, out


def test_a_signal_for_the_training_reaches_it(tmp_path: Path) -> None:
    code, out = _send(tmp_path, "handler", signal.SIGUSR1)
    assert (code, "6 of 6" in out) == (0, True)
    assert (tmp_path / "checkpoint").exists()


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    code, out = _send(
        tmp_path,
        "waits",
        signal.SIGHUP,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert (code, "6 of 6" in out) == (0, True)


def test_descriptors_that_the_training_closes(tmp_path: Path) -> None:
    done = fresh_nanodoc("run", "train.py:closed", cwd=tmp_path)
    assert done.returncode == 3
    assert "--in-process" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_date_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("recipe: {day: 2024-01-01, tags: !!set {a, b}}\n")
    assert nanodoc("run", "train.py:build", "--config", "c.yaml", cwd=tmp_path).returncode == 0


def test_words_that_were_not_the_last(tmp_path: Path) -> None:
    report = report_of(nanodoc("run", "train.py:stale", "--output-format", "json", cwd=tmp_path))
    finding = report["findings"][0]
    assert finding["title"].endswith("was killed by SIGSEGV")
    assert "string_at(0)" in finding["culprit"]["location"]["code"]
    assert "itself" not in finding["explanation"]


def test_ranks_that_are_only_in_the_environment(tmp_path: Path) -> None:
    done = nanodoc("run", "train.py:build", cwd=tmp_path, RANK="1", WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    assert "no other rank appeared" in " ".join(done.stdout.split())
