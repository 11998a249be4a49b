"""While a script's stores were listened to, methods of nanodoc's stood at `Tensor.__getitem__` and
`Tensor.__setitem__`. With those, torch takes tensors for Python sequences: `torch.tensor([a, b])`
of two scalars raised "len() of a 0-d tensor", for the rest of the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
frozen = nn.Sequential(nn.Linear(4, 8), {layer}).eval().requires_grad_(False)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
states, rewards, ends = torch.zeros(32, 8, 4), torch.zeros(32, 8), torch.zeros(32, 8)
state, end, seen = torch.randn(8, 4), torch.zeros(8), torch.zeros((), dtype=torch.float64)
for update in range(12):
    for step in range(32):
        states[step], ends[step] = state, end
        with torch.no_grad():
            seen = seen + frozen(state.view(2, 4, 4)).double().abs().sum()
        state = 0.8 * state + 0.3 * torch.randn(8, 4)
        rewards[step] = -state.square().mean(1)
        end = (torch.rand(8) < 0.2).float()
        ends[step] = end
    for rows in torch.randperm(32).split(8):
        target = rewards[rows] * (1 - ends[rows])
        loss = nn.functional.mse_loss(policy(states[rows]).squeeze(-1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    both = torch.tensor([loss.detach().double(), seen])
print(both.tolist(), torch.as_tensor([seen, seen]).tolist())
"""


@pytest.mark.parametrize(
    "layer",
    [
        "nn.Tanh()",
        # another kernel in eval mode, unless a function mode is on
        "nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)",
    ],
    ids=["linear", "attention"],
)
def test_a_script_may_put_scalars_together(layer: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("{layer}", layer), encoding="utf-8")
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "--budget", "5", "train.py", cwd=tmp_path)
    assert done.stdout == bare.stdout != ""
