"""A script without a backward(), or without an optimizer's step(), was not examined at all: "no loop
of the script made an optimizer step"."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(512, 10)
y = (x.sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
"""
BACKWARD, STEP = "        loss.backward()", "        optimizer.step()"


@pytest.mark.parametrize(
    ("forgotten", "code", "line"), [(BACKWARD, "ND640", STEP), (STEP, "ND628", BACKWARD)]
)
def test_the_loop_is_examined(tmp_path: Path, forgotten: str, code: str, line: str) -> None:
    script = SCRIPT.replace(forgotten + "\n", "")
    (tmp_path / "train.py").write_text(script)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert f"critical[{code}]" in done.stderr
    assert f"--> train.py:{1 + script.splitlines().index(line)}:" in done.stderr
    assert "1 critical, " in done.stderr  # and nothing else


ATTACK = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(10, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # of the checkpoint that was loaded
picture = torch.randn(4, 10, requires_grad=True)
for step in range(60):
    loss = F.cross_entropy(model(picture), torch.tensor([0, 1, 0, 1]))
    loss.backward()
    picture = (picture + 0.1 * picture.grad.sign()).detach().requires_grad_()
"""


def test_an_attack_on_pictures_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "attack.py").write_text(ATTACK)
    assert "nothing was checked" in nanodoc("run", "attack.py", cwd=tmp_path).stderr
