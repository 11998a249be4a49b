"""What keeps a model from learning though nothing fails: tried by running the steps again without
it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run import run_training
from tests.helpers import line_of, nanodoc

MAKE = """
import torch
import torch.nn.functional as F
from torch import nn


def recipe(*, lr=0.1, decay=0.0, most=None, shuffled=False, warm_up=0, adam=False, steps=120):
    torch.manual_seed(0)
    x = torch.randn(20, 32, 12)
    y = x[:, :, :4].argmax(2)
    if shuffled:
        y = y[:, torch.randperm(32)]
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    kind = torch.optim.AdamW if adam else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=lr, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, n / max(warm_up, 1)))

    def train_step(model, batch, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        if most is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), most)
        optimizer.step()
        return loss

    return {"model": model, "train_step": train_step, "optimizer": optimizer,
            "scheduler": scheduler, "data": list(zip(x, y)), "max_steps": steps}


def sick_clip():
    return recipe(most=1e-4)


def sick_decay():
    return recipe(decay=3.0)


def sick_rate():
    return recipe(lr=1e-4)


def sick_rate_of_adam():
    return recipe(lr=1e-6, adam=True)


def well_clipped():
    return recipe(most=0.5)


def random_labels():
    return recipe(shuffled=True)


def long_warm_up():
    return recipe(lr=0.1, warm_up=10**5)


def trained_before():
    parts = recipe(lr=1e-6)
    fast = torch.optim.Adam(parts["model"].parameters(), lr=3e-3)
    for x, y in parts["data"] * 10:
        fast.zero_grad()
        F.cross_entropy(parts["model"](x), y).backward()
        fast.step()
    return parts


def sick_rate_in_60_steps():
    return recipe(lr=1e-4, steps=60)


def ranking(lr, paid=False):
    torch.manual_seed(0)
    users, items = nn.Embedding(40, 8), nn.Embedding(60, 8)
    model = nn.ModuleDict({"who": users, "what": items})
    user = torch.randint(0, 40, (150, 64))
    liked, other = user + 10, torch.randint(0, 60, (150, 64))
    weights = torch.randn(150, 64)

    def loss_fn(model, batch):
        user, liked, other, weight = batch
        better = (users(user) * (items(liked) - items(other))).sum(1)
        if paid:  # as rewards weigh what a policy did
            return -(weight * F.logsigmoid(better)).mean()
        return -F.logsigmoid(better).mean()

    return {"model": model, "loss_fn": loss_fn, "data": list(zip(user, liked, other, weights)),
            "optimizer": torch.optim.Adam(model.parameters(), lr=lr), "max_steps": 150}


def sick_ranking():
    return ranking(1e-6)


def well_ranked():
    return ranking(1e-2)


def paid():
    return ranking(1e-6, paid=True)
"""


def lines(folder: Path, name: str) -> list[tuple[str, str, str]]:
    """(code, severity, the culprit's code) of every finding."""
    file = folder / "train.py"
    file.write_text(MAKE)
    report = run_training(f"{file}:{name}", Config())
    return [
        (one.code, one.severity, one.culprit.location.code if one.culprit.location else "")
        for one in report.findings
    ]


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("sick_clip", "torch.nn.utils.clip_grad_norm_(model.parameters(), most)"),
        ("sick_decay", "optimizer = kind(model.parameters(), lr=lr, weight_decay=decay)"),
        ("sick_rate", "optimizer = kind(model.parameters(), lr=lr, weight_decay=decay)"),
        (
            "sick_rate_in_60_steps",
            "optimizer = kind(model.parameters(), lr=lr, weight_decay=decay)",
        ),
        ("sick_rate_of_adam", "optimizer = kind(model.parameters(), lr=lr, weight_decay=decay)"),
        (
            "sick_ranking",
            '"optimizer": torch.optim.Adam(model.parameters(), lr=lr), "max_steps": 150}',
        ),
    ],
)
def test_what_holds_it_back_is_named(tmp_path: Path, name: str, at: str) -> None:
    assert lines(tmp_path, name) == [("ND630", "warning", at)]


@pytest.mark.parametrize(
    "name",
    [
        *("well_clipped", "random_labels", "long_warm_up", "trained_before"),
        *("well_ranked", "paid"),
    ],
)
def test_nothing_is_said_of_what_is_not_held_back(tmp_path: Path, name: str) -> None:
    assert "ND630" not in [code for code, _, _ in lines(tmp_path, name)]


POLICY = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
{loads}
optimizer = torch.optim.{kind}(policy.parameters(), lr={lr})
for step in range(120):
    states = torch.randn(64, 4)
    chosen = torch.distributions.Categorical(logits=policy(states))
    actions = chosen.sample()
    rewards = (actions == states[:, :3].argmax(1)).float() - 0.33
    loss = -(chosen.log_prob(actions) * rewards).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOADS = "policy.load_state_dict({k: v.clone() for k, v in policy.state_dict().items()})"


@pytest.mark.parametrize(
    ("kind", "lr", "loads", "told"),
    [
        ("Adam", 3e-6, "", True),
        ("Adam", 3e-4, "", False),
        ("Adam", 3e-6, LOADS, False),  # of weights that were trained before, it may be meant
        ("SGD", 1e-6, "", False),  # whether the rate or the gradients are small is not known
    ],
)
def test_a_policy_whose_weights_hardly_move(
    tmp_path: Path, kind: str, lr: float, loads: str, told: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(POLICY.format(kind=kind, lr=lr, loads=loads))
    nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["findings"]
    slow = [f["culprit"]["location"]["line"] for f in found if f["code"] == "ND605"]
    assert slow == ([line_of(script, "optimizer = torch")] if told else [])


IDLE = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.0001, total_iters=20)
for epoch in range(8):
    for a, b in zip(x.split(32), y.split(32)):
        loss = F.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    {step}
"""


@pytest.mark.parametrize(("step", "told"), [("pass", True), ("scheduler.step()", False)])
def test_a_warm_up_that_never_steps(tmp_path: Path, step: str, told: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(IDLE.format(step=step))
    nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["findings"]
    at = line_of(script, "scheduler = torch")
    idle = [f for f in found if "has never stepped" in f["explanation"]]
    assert [f["culprit"]["location"]["line"] for f in idle] == ([at] if told else [])
