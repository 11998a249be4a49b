"""A script that validates on samples it trains on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset, random_split

torch.manual_seed(0)
x = torch.randn(200, 20)
y = x[:, :3].argmax(1)
data = TensorDataset(x, y)
{split}
model = nn.Linear(20, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def validate(part):
    with torch.no_grad():
        losses = [F.cross_entropy(model(inputs), labels) for inputs, labels in DataLoader(part, 16)]
    print(float(sum(losses) / len(losses)))


def train(part):
    for epoch in range(2):
        for inputs, labels in DataLoader(part, 16, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        for part_of_validation in validations:
            validate(part_of_validation)


train(training)
{later}
"""


def watched(folder: Path, split: str, later: str = "") -> str:
    """What is told of a training that prints the same with and without us."""
    (folder / "train.py").write_text(SCRIPT.format(split=split, later=later))
    bare = python("train.py", cwd=folder)
    done = nanodoc("run", "train.py", cwd=folder)
    assert done.stdout == bare.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (
            "training = Subset(data, range(160))\nvalidations = [Subset(data, range(140, 200))]",
            "20 of 60",
        ),
        (
            "training = random_split(data, [160, 40])[0]\n"
            "validations = [random_split(data, [160, 40])[1]]",
            "",
        ),
        ("training = data\nvalidations = [Subset(data, range(150, 200))]", "50 of 50"),
        (
            "training = TensorDataset(x[:160], y[:160])\n"
            "validations = [TensorDataset(x[140:], y[140:])]",
            "20 of 60",
        ),
    ],
)
def test_samples_in_both_are_told(tmp_path: Path, split: str, told: str) -> None:
    text = watched(tmp_path, split)
    assert "warning[ND128]" in text
    assert f"{told} " in text
    if "Subset" in split:
        line = (tmp_path / "train.py").read_text().split("validations = ")[0].count("\n") + 1
        assert f"train.py:{line}:" in text.split("warning[ND128]")[1]


@pytest.mark.parametrize(
    "split",
    [
        "training, *validations = random_split(data, [160, 40])",
        "training, *validations = data, data",
        "training = Subset(data, range(160))\n"
        "validations = [Subset(data, range(40)), Subset(data, range(160, 200))]",
        "x = x.round().clamp(0, 1)[:, :3].repeat(1, 7)[:, :20]\n"
        "training, *validations = random_split(TensorDataset(x, y), [160, 40])",
        "training = ConcatDataset([Subset(data, range(80)), Subset(data, range(80, 160))])\n"
        "validations = [Subset(data, range(160, 200))]",
    ],
)
def test_parts_that_are_apart_or_looked_at_on_purpose(tmp_path: Path, split: str) -> None:
    assert "ND128" not in watched(tmp_path, split)


def test_a_small_look_at_the_training_s_own_samples_is_no_warning(tmp_path: Path) -> None:
    text = watched(tmp_path, "training = data\nvalidations = [Subset(data, range(16))]")
    assert "warning[ND128]" not in text


def test_another_fold_leaves_another_part_out(tmp_path: Path) -> None:
    text = watched(
        tmp_path,
        "training = Subset(data, range(100))\nvalidations = [Subset(data, range(100, 200))]",
        "training, validations = validations[0], [training]\ntrain(training)",
    )
    assert "ND128" not in text
