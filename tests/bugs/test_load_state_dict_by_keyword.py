"""`load_state_dict(state_dict=…)` and the names of its parameters, as some libraries look them up, are
those of torch while a script is watched."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc, python

SCRIPT = """
import inspect

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.randn(256, 8)
y = x[:, :3].argmax(1)
for start in range(0, 256, 16):
    optimizer.zero_grad()
    F.cross_entropy(model(x[start : start + 16]), y[start : start + 16]).backward()
    optimizer.step()
kept = {name: tensor.clone() for name, tensor in model.state_dict(prefix="").items()}
print(model.load_state_dict(state_dict=kept, strict=True))
print(list(inspect.signature(model.load_state_dict).parameters))
print(list(inspect.signature(nn.Module.state_dict).parameters))
"""


def test_they_are_called_as_ever(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == python("train.py", cwd=tmp_path).stdout
