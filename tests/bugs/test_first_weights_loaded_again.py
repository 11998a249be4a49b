"""A script that loads its first weights again when its training is over, as a search for a learning
rate does, was told that its parameters had never moved."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc

SCRIPT = """
import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
first = copy.deepcopy(model.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(512, 8)
y = x[:, :3].argmax(1)
for start in range(0, 512, 16):
    optimizer.zero_grad()
    F.cross_entropy(model(x[start : start + 16]), y[start : start + 16]).backward()
    optimizer.step()
model.load_state_dict(first)
"""


def test_nothing_is_said_of_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing found" in done.stderr
