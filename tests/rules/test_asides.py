"""What a script does beside its training steps: it validates in training mode, or puts back weights
that it never copied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import marked, nanodoc, python

SCRIPT = """
import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(384, 10)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 16), {norm}, nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
training = DataLoader(TensorDataset(x[:256], y[:256]), batch_size=32, shuffle=True)
validation = DataLoader(TensorDataset(x[256:], y[256:]), batch_size=32)


@torch.no_grad()
def validate():
    {mode}
    losses = []
    for inputs, labels in validation:  # validated
        losses.append(float(F.cross_entropy(model(inputs), labels)))
    return sum(losses)


def epoch(loader):
    model.train()
    for inputs, labels in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


kept = {kept}  # kept
for number in range(3):
    epoch(training)
    print(round(validate(), 6))
{later}
"""
COPY = "copy.deepcopy(model.state_dict())"
LOAD = "model.load_state_dict(kept)"


def watched(
    folder: Path, *, norm: str = "nn.Identity()", mode: str = "pass", kept: str = COPY, later: str
) -> list[str]:
    """What is told of, by code and line, in a training that prints the same with and without
    us."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(norm=norm, mode=mode, kept=kept, later=later))
    bare = python("train.py", cwd=folder)
    done = nanodoc("run", "train.py", cwd=folder)
    assert done.stdout == bare.stdout
    found = re.findall(r"^(?:critical|warning)\[(\w+)\][^>]*--> train.py:(\d+)", done.stderr, re.M)
    return [f"{code} {line}" for code, line in found]


@pytest.mark.parametrize("norm", ["nn.Identity()", "nn.BatchNorm1d(16)"])
def test_a_validation_in_training_mode(tmp_path: Path, norm: str) -> None:
    told = watched(tmp_path, norm=norm, later=LOAD)
    assert told == [f"ND642 {marked(tmp_path / 'train.py', 'validated')}"]


ONLY_DROPOUT = "model.eval(), model[3].train()"


@pytest.mark.parametrize("mode", ["model.eval()", ONLY_DROPOUT])
def test_eval_mode_and_noise_that_is_wanted(tmp_path: Path, mode: str) -> None:
    assert watched(tmp_path, norm="nn.BatchNorm1d(16)", mode=mode, later=LOAD) == []


def test_another_training_is_no_validation(tmp_path: Path) -> None:
    later = "epoch(validation)\n" * 2
    assert watched(tmp_path, norm="nn.BatchNorm1d(16)", mode="model.eval()", later=later) == []


def test_weights_that_were_never_copied(tmp_path: Path) -> None:
    told = watched(tmp_path, mode="model.eval()", kept="model.state_dict()", later=LOAD)
    assert told == [f"ND643 {marked(tmp_path / 'train.py', 'kept')}"]


def test_weights_that_are_put_back_at_once(tmp_path: Path) -> None:
    """Nothing was written in between: a check that the names fit."""
    later = "model.load_state_dict(model.state_dict())"
    assert watched(tmp_path, mode="model.eval()", later=later) == []
