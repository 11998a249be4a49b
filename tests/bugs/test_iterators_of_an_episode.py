"""When a script was over, an iteration that draws from an iterator in a loop of its own (`for t in
count(1)`) could not be run again: what had been drawn before was taken for what the iterator
yields, and nothing of the last steps was looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
from itertools import count

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
places = iter(torch.randn(5_000, 4))
policy = nn.Linear(4, 2)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

for episode in range(20):
    log_probs, rewards = [], []
    for t in count(1):
        place = next(places)
        action = Categorical(logits=policy(place))
        chosen = action.sample()
        log_probs.append(action.log_prob(chosen))
        rewards.append(float((place[0] > 0) == (chosen == 1)))
        if t == 10:
            break
    returns, total = [], 0.0
    for reward in {rewards}:
        total = reward + 0.9 * total
        returns.append(total)
    loss = -(torch.stack(log_probs) * torch.tensor(returns)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("rewards", "line"),
    [("rewards", "    for reward in rewards:"), ("rewards[::-1]", "        returns.append(total)")],
)
def test_the_last_step_is_run_again(tmp_path: Path, rewards: str, line: str) -> None:
    script = SCRIPT.replace("{rewards}", rewards)
    (tmp_path / "train.py").write_text(script)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert "run again)" not in done.stderr
    assert "critical[ND635]" in done.stderr
    assert f"--> train.py:{1 + script.splitlines().index(line)}:" in done.stderr
