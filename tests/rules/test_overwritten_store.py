"""Rows of a rollout that a script stores twice: told where nothing has read the first value, each
time, and silent where something has, or where the first value is nothing but a start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import marked, nanodoc, python

SCRIPT = """
import torch
from torch import nn

class Rollout:
    def __init__(self):
        self.states, self.rewards = torch.zeros(32, 8, 4), torch.zeros(32, 8)
        self.ends = torch.zeros(32, 8)

    def ended(self):
        return float(self.ends.mean())

def put(store, step, value):
    store[step] = value

def collect(rollout, state, end, policy):
    states, rewards, ends = rollout.states, rollout.rewards, rollout.ends
    seen, views = 0.0, {"ends": ends}
    for step in range(32):
        states[step] = state
        {first}
        with torch.no_grad():
            action = policy(state).tanh()
        state = 0.8 * state + 0.1 * action + 0.1 * torch.randn(8, 4)
        rewards[step] = -state.square().mean(1)
        end = (torch.rand(8) < 0.2).float()
        {second}
    return state, end, seen

def main():
    torch.manual_seed(0)
    policy, value = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], lr=1e-2)
    rollout, state, end = Rollout(), torch.randn(8, 4), torch.zeros(8)
    {names}
    for update in range(12):
        state, end, _ = collect(rollout, state, end, policy)
        returns, following = torch.zeros(32, 8), torch.zeros(8)
        for t in reversed(range(32)):
            following = rollout.rewards[t] + 0.9 * following * (1 - rollout.ends[t])
            returns[t] = following
        for rows in torch.randperm(32).split(8):
            guess = value(rollout.states[rows]).squeeze(-1)
            loss = nn.functional.mse_loss(guess, returns[rows])
            loss = loss + 0.01 * policy(rollout.states[rows]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(float(loss), state.sum().item())

main()
"""
NAMED = "states, rewards, ends = rollout.states, rollout.rewards, rollout.ends"
CASES = {
    "stored twice": ("ends[step] = end", "ends[step] = end  # overwritten", True),
    "stored once": ("ends[step] = end", "pass", False),
    "read by its index": (
        "ends[step] = end; seen += float(ends[step].sum())",
        "ends[step] = end",
        False,
    ),
    "read as a whole": ("ends[step] = end; seen += float(ends.sum())", "ends[step] = end", False),
    "read by a method of its owner": (
        "ends[step] = end; seen += rollout.ended()",
        "ends[step] = end",
        False,
    ),
    "read through a dictionary": (
        "ends[step] = end; seen += float(views['ends'].sum())",
        "ends[step] = end",
        False,
    ),
    "stored by a function, read by its caller": (
        "put(ends, step, end); seen += float(ends.sum())",
        "put(ends, step, end)",
        False,
    ),
    "a start, then a value": ("ends[step] = 0.0", "ends[step] = end", False),
    "overwritten at times": (
        "ends[step] = end",
        "ends[step] = end if step % 2 else ends[step]",
        False,
    ),
}


EACH_STEP = """
import torch
from torch import nn

torch.manual_seed(0)
value = nn.Linear(4, 1)
optimizer = torch.optim.Adam(value.parameters(), lr=1e-2)
states, rewards, ends = torch.zeros(500, 4), torch.zeros(500), torch.zeros(500)
state, end = torch.randn(4), torch.tensor(0.0)
for step in range(200):
    states[step], ends[step] = state, end
    state = 0.8 * state + 0.3 * torch.randn(4)
    rewards[step] = -state.square().mean()
    end = (torch.rand(()) < 0.2).float()
    ends[step] = end  # overwritten
    rows = torch.randint(0, step + 1, (16,))
    target = rewards[rows] * (1 - ends[rows])
    loss = nn.functional.mse_loss(value(states[rows]).squeeze(-1), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(float(loss))
"""


def test_one_row_in_each_step(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(EACH_STEP, encoding="utf-8")
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "--budget", "5", "train.py", cwd=tmp_path)
    assert done.stdout == bare.stdout
    assert f"--> train.py:{marked(script, 'overwritten')}" in done.stderr
    assert "[ND173]" in done.stderr


@pytest.mark.parametrize("case", CASES)
def test_a_store_that_nothing_has_read(case: str, tmp_path: Path) -> None:
    first, second, sick = CASES[case]
    script = tmp_path / "train.py"
    text = SCRIPT.replace("{first}", first).replace("{second}", second).replace("{names}", NAMED)
    script.write_text(text, encoding="utf-8")
    bare = python("train.py", cwd=tmp_path)
    output = ("--output", "report.json", "--output-format", "json")
    done = nanodoc("run", "--quiet", "--budget", "5", *output, "train.py", cwd=tmp_path)
    assert done.stdout == bare.stdout
    findings = json.loads((tmp_path / "report.json").read_text())["findings"]
    told = [(f["code"], f["culprit"]["location"]["line"]) for f in findings if f["code"] == "ND173"]
    assert told == ([("ND173", marked(script, "overwritten"))] if sick else [])
