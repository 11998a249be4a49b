"""An experiment that takes longer than the examination may is broken off where it stands."""

from __future__ import annotations

import builtins
import gc
import io
import math
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from nanodoc.looks.scheduler import OutOfTime
from nanodoc.replay.time_limit import broken_off_at
from nanodoc.script.muted import muted
from tests.helpers import nanodoc, report_of

RECIPE = """
import time
import torch

def loss_fn(model, batch):
    out = model(batch)
    until = time.monotonic() + 100
    while out.dtype is torch.float64 and time.monotonic() < until:
        try:
            out = out + 0
        except Exception:  # whatever comes, it goes on
            pass
    return (out / (out - out)).mean()

def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(8, 4)] * 3,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.01)}
"""


def test_one_that_would_not_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RECIPE)
    report = report_of(
        nanodoc("run", "--output-format", "json", "--budget", "4", "train.py:build", cwd=tmp_path)
    )
    first = report["findings"][0]
    assert first["code"] == "ND202"
    outcomes = {row["name"]: row["outcome"] for row in first["experiments"]}
    assert outcomes["same again"] == "fails again, bitwise the same"
    assert outcomes["float64"] == "not run: the time limit is reached (--budget)"


def test_code_that_catches_everything_is_told_again() -> None:
    told = []

    def stubborn() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                sum(range(100_000))  # as good as all of its time passes here
            except BaseException:
                told.append(1)
                if len(told) > 2:
                    raise

    with pytest.raises(OutOfTime), broken_off_at(time.monotonic() + 0.1):
        stubborn()
    assert len(told) == 3
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_a_timer_of_the_training_is_left_alone() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with broken_off_at(time.monotonic()):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 900
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_nothing_is_set_where_there_is_no_limit() -> None:
    with broken_off_at(math.inf):
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


class Tee(io.StringIO):
    """A stdout of the script's own, that goes to a slow disk, too."""

    def flush(self) -> None:
        until = time.monotonic() + 0.002
        while time.monotonic() < until:
            pass


def test_nothing_that_is_put_back_is_left_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Tee())
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    batch, broken_off = torch.randn(16, 8), 0

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.bias.mul_(0.99)

    before = (builtins.open, sys.stdout, os.open)
    for number in range(80):
        try:
            with broken_off_at(time.monotonic() + number * 5e-5), muted():
                while True:
                    step()
        except OutOfTime:
            broken_off += 1
        assert torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        assert (builtins.open, sys.stdout, os.open) == before
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert broken_off == 80


def test_what_the_garbage_collector_calls_ends_first() -> None:
    """An exception there would be printed, and the step would go on."""
    ended = []

    def collected(phase: str, info: dict[str, int]) -> None:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        ended.append(phase)

    def step() -> None:
        gc.collect()
        time.sleep(60)

    gc.callbacks.append(collected)
    try:
        with pytest.raises(OutOfTime), broken_off_at(time.monotonic() + 0.1):
            step()
    finally:
        gc.callbacks.remove(collected)
    assert ended[:2] == ["start", "stop"]
