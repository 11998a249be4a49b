"""Every step of a train_step or a script that was watched in full left its batch in a cycle of references, where it
stayed until Python collected its garbage: a training of large batches took gigabytes more. Of steps that were watched
by their losses alone up to 32 batches were kept beyond the limits on memory, and on the file descriptors that a
loader's workers share their tensors by."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.loop.engine import Engine
from nanodoc.replay.step_state import StepState
from tests.helpers import nanodoc

BATCHES = """
import gc
import weakref

import torch
from torch import nn

gc.disable()
made, most = [], 0


class Data:
    def __iter__(self):
        global most
        for _ in range(160):
            batch = torch.empty(1 << 21, 4), torch.randn(8, 1)  # 32 MiB, few of which are written
            batch[0][:8] = 0
            made.append(weakref.ref(batch[0]))
            most = max(most, sum(one() is not None for one in made))
            yield batch
        print("at once:", most)


def parts():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loss(model, batch):
    return (model(batch[0][:8] + torch.randn(8, 4)) - batch[1]).square().mean()
"""
RECIPES = (
    BATCHES
    + """
import nanodoc


def driven():
    model, optimizer = parts()
    return nanodoc.Recipe(model=model, optimizer=optimizer, data=Data(), loss_fn=loss)


def own():
    model, optimizer = parts()

    def train_step(model, batch, optimizer):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value

    return nanodoc.Recipe(model=model, optimizer=optimizer, data=Data(), train_step=train_step)
"""
)
SCRIPT = (
    BATCHES
    + """
model, optimizer = parts()
for batch in Data():
    optimizer.zero_grad()
    loss(model, batch).backward()
    optimizer.step()
"""
)
LOADER = (
    BATCHES
    + """
from torch.utils.data import DataLoader, IterableDataset


class Stream(Data, IterableDataset):
    pass


model, optimizer = parts()
for batch in DataLoader(Stream(), batch_size=None):
    optimizer.zero_grad()
    loss(model, batch).backward()
    optimizer.step()
"""
)
WORKERS = """
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(2400, 16), torch.randn(2400, 1))
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    most = 0
    for x, y in DataLoader(data, batch_size=4, num_workers=1):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        most = max(most, len(os.listdir("/proc/self/fd")))
    print("at once:", most)


if __name__ == "__main__":
    main()
"""


def at_once(told: str) -> int:
    (line,) = (line for line in told.splitlines() if line.startswith("at once:"))
    return int(line.split()[-1])


@pytest.mark.parametrize("target", ["recipe.py:driven", "recipe.py:own", "script.py", "loader.py"])
def test_so_many_batches_are_there_at_once(tmp_path: Path, target: str) -> None:
    for name, text in (("recipe", RECIPES), ("script", SCRIPT), ("loader", LOADER)):
        (tmp_path / f"{name}.py").write_text(text)
    steps = ["--steps", "200"] if target.startswith("recipe") else []
    done = nanodoc("run", "--quiet", "--budget", "1", *steps, target, cwd=tmp_path)
    # those that the limit of 512 MiB allows, three with copies of the weights, and the last ones
    assert at_once(done.stdout + done.stderr) <= 16 + 3 + 6


def test_brief_steps_can_be_run_again_when_the_next_full_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its batch took the place of the first one's, whose weights were kept."""
    monkeypatch.setattr("nanodoc.replay.past_batches._MOST_BYTES", 12 * 64 * 4 * 4)
    for share in ("_SHARE_OF_TIME", "_DEAREST"):  # what a copy takes does not count
        monkeypatch.setattr(f"nanodoc.replay.weight_history.{share}", 1e9)
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.001),
        data=(torch.randn(64, 4) for _ in range(300)),
        loss_fn=lambda model, batch: model(batch).square().mean() + 1,
    )
    run = Engine(recipe, torch.device("cpu"), None, steps=300)
    full, lost, begin = [-1], [], run.checkpoints.before_step

    def before_step(capsule: StepState, indices: Sequence[int] | None = None) -> float:
        anchor = run.checkpoints.anchor
        seconds = begin(capsule, indices)
        behind_brief_ones = capsule.step - full[-1] > 1 and anchor is not None
        if behind_brief_ones and not run.checkpoints.steps_between(anchor.step, capsule.step):
            lost.append(capsule.step)
        full.append(capsule.step)
        return seconds

    monkeypatch.setattr(run.checkpoints, "before_step", before_step)
    run.run()
    assert len(full) < 290
    assert not lost


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_so_many_descriptors_are_open_at_once(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKERS)
    done = nanodoc("run", "--quiet", "--budget", "1", "train.py", cwd=tmp_path)
    # the limit is 64 tensors; the loader has its own, and those that it has loaded ahead
    assert at_once(done.stdout) <= 64 + 30, done.stdout
