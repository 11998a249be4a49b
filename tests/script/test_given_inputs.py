"""ND176: networks whose inputs are turned in training and not in use, or the other way round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nanodoc.script.given_inputs import GivenInputs
from tests.helpers import line_of, nanodoc

PICTURES = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def pictures(count):
    labels = torch.randint(0, 4, (count,))
    x = 0.3 * torch.randn(count, 1, 12, 12)
    for i, label in enumerate(labels.tolist()):
        x[i, 0, 2 * label : 2 * label + 3, 1:5] += 1.0
    return TensorDataset(x, labels)


def accuracy():
    model.eval()
    with torch.no_grad():
        right = sum((model({asked}).argmax(1) == y).sum().item() for x, y in held_out)
    model.train()
    return right


model = nn.Sequential(nn.Flatten(), nn.Linear(144, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
train = DataLoader(pictures(256), batch_size=16, shuffle=True)
held_out = DataLoader(pictures(64), batch_size=32)
for epoch in range(3):
    for x, y in train:
        loss = F.cross_entropy(model({trained}), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(accuracy())
"""
ACTING = """
import torch
from torch import nn

torch.manual_seed(0)
q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(q.parameters(), lr=1e-3)
state, memory = torch.zeros(4), []
wide = torch.tensor([0.1, 1.0, 0.3, 3.0])
for step in range(400):
    with torch.no_grad():
        action = int(q({acted}).argmax())
    new = 0.7 * state + wide * (torch.randn(4) + 0.1 * (2 * action - 1))
    memory.append((state, action, float(new.sum()), new))
    state = new
    if len(memory) < 32:
        continue
    batch = [memory[i] for i in torch.randint(0, len(memory), (32,)).tolist()]
    states, news = torch.stack([b[0] for b in batch]), torch.stack([b[3] for b in batch])
    actions = torch.tensor([b[1] for b in batch])
    rewards = torch.tensor([b[2] for b in batch])
    with torch.no_grad():
        target = rewards + 0.9 * q(news).max(1).values
    told = q({trained}).gather(1, actions[:, None]).squeeze(1)
    loss = (told - target).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def found(folder: Path, text: str) -> list[tuple[int, str]]:
    """(line, title) of each ND176."""
    (folder / "train.py").write_text(text)
    nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=folder)
    told = json.loads((folder / "r.json").read_text())["findings"]
    return [(f["culprit"]["location"]["line"], f["title"]) for f in told if f["code"] == "ND176"]


@pytest.mark.parametrize(
    ("trained", "asked", "at", "how"),
    [
        ("x.flip(-1)", "x", "model(x.flip(-1))", "flipped along axis 3"),
        ("x", "x.flip(-1)", "model(x.flip(-1))", "flipped along axis 3"),
        ("x", "x.transpose(2, 3)", "model(x.transpose(2, 3))", "transposed"),
        ("-x", "x", "", ""),  # what drifts to the other side of zero looks the same
        ("x", "x", "", ""),
        ("x.flip(-1)", "x.flip(-1)", "", ""),  # both the same way
        ("x if torch.rand(()) < 0.5 else x.flip(-1)", "x", "", ""),  # an augmentation
        ("x", "torch.cat([x, x.flip(-1)])[: len(x)]", "", ""),
    ],
)
def test_a_validation_of_other_pictures(
    tmp_path: Path, trained: str, asked: str, at: str, how: str
) -> None:
    told = found(tmp_path, PICTURES.format(trained=trained, asked=asked))
    assert len(told) == bool(how)
    for line, title in told:
        assert line == line_of(tmp_path / "train.py", at)
        assert how in title


@pytest.mark.parametrize(
    ("acted", "trained", "sick"),
    [
        ("state", "states.flip(-1)", True),
        ("state.flip(0)", "states", True),
        ("state", "states", False),
    ],
)
def test_an_agent_that_acts_on_other_observations(
    tmp_path: Path, acted: str, trained: str, *, sick: bool
) -> None:
    told = found(tmp_path, ACTING.format(acted=acted, trained=trained))
    at = "told = q(" if "flip" in trained else "action = int(q("
    assert [line for line, _ in told] == ([line_of(tmp_path / "train.py", at)] if sick else [])


def listened(trained: torch.Tensor, asked: torch.Tensor) -> str:
    """What is found of a network that is called with these."""
    inputs, model = GivenInputs(lambda: False), torch.nn.Linear(trained.shape[-1], 2)
    inputs.of_model(model, lambda: True)
    for part in trained.split(16):
        inputs.begins()
        model(part)
    inputs.left()
    with torch.no_grad():
        for part in asked.split(16):
            model(part)
    seen = inputs.facts()
    inputs.close()
    assert not torch.nn.modules.module._global_forward_pre_hooks
    return seen.how if seen is not None else ""


def test_shapes_that_vary_and_features_that_drift() -> None:
    torch.manual_seed(0)
    level = torch.arange(20.0) / 5
    spoken, held = torch.randn(256, 20) + level, torch.randn(96, 20) + level
    assert listened(spoken, held.flip(-1)) == "flipped along axis 1"
    assert listened(spoken, held) == ""
    assert listened(spoken, 0.2 * held + 1) == ""  # another scale is no turn
    few = torch.tensor([0.1, 1.0, 0.5, 3.0])
    states = torch.randn(256, 4) * few
    # a policy that has learnt meets other states than the first ones
    assert listened(states, torch.randn(96, 4) * few.sqrt()) == ""
    assert listened(states[:32], held[:, :4]) == ""  # too few
