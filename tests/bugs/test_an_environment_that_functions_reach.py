"""Found by a blind set: an environment that only functions of a script reach, and not the loop's body, was found in the
middle of the first step. Its first reset() was not kept, and the step, run again, was given another call's answer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.helpers import line_of, nanodoc

SIMULATOR = """
class Lake:
    def __init__(self):
        self.place = 0

    def reset(self, seed=None):
        self.place = 0
        return self.place, {}

    def step(self, action):
        self.place += 1 if action else -1
        return self.place % 8, 0.0, self.place == 3, abs(self.place) > 5, {}
"""
SCRIPT = """
import sys
sys.path.insert(0, "lib")
import torch
from torch import nn
from torch.distributions import Categorical
from gymnasium_like import Lake

Lake.__module__ = "gymnasium.envs.lake"
env = Lake()
torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
kept = []


def episode():
    state, _ = env.reset(seed=0)
    rewards = []
    while True:
        choice = Categorical(logits=policy(nn.functional.one_hot(torch.tensor(state), 8).float()))
        action = choice.sample()
        kept.append(choice.log_prob(action))
        state, reward, done, late, _ = env.step(action.item())
        rewards.append(reward)
        if done or late:
            return rewards


def finish(rewards):
    returns = torch.tensor(rewards)
    returns = (returns - returns.mean()) / returns.std()
    loss = -(torch.stack(kept) * returns).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.clear()


for update in range(5):
    rewards = [] if update > 1 else [1.0]
    for _ in range(3):
        rewards += episode()
    finish(rewards[: len(kept)])
"""


def test_the_step_is_run_again_and_the_line_is_found(tmp_path: Path) -> None:
    assert "gymnasium" not in sys.modules
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "gymnasium_like.py").write_text(SIMULATOR)
    done = nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    report = json.loads((tmp_path / "r.json").read_text())
    assert "bitwise the same" in report["run"]["step_found"], done.stderr
    first = report["findings"][0]
    assert first["code"] == "ND202"
    assert first["culprit"]["location"]["line"] == line_of(script, "returns = (returns")
