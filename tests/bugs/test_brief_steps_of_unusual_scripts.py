"""Steps that are watched by their losses alone, of scripts that do something unusual: NumPy's global
generator is no Mersenne Twister, the optimizer is made anew, the loss is written into behind its
backward pass. Each lost its finding once, or nanodoc's own error ended the watching."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

PCG = """
import numpy as np
import torch

np.random.set_bit_generator(np.random.PCG64(1))
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(100):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = (net(x).square().mean() - float(step == 90) * 1e9).sqrt()  # sick
    loss.backward()
    optimizer.step()
"""
ANEW = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
batches = torch.randn(200, 8, 4)
for step, x in enumerate(batches):
    if step == 103:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    optimizer.zero_grad()
    size = (net.weight * float(step != 112)).abs().sum().sqrt()  # sick
    loss = net(x).square().mean() + size
    loss.backward()
    optimizer.step()
"""
WRITTEN = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
batches = torch.randn(200, 8, 4)
total = 0.0
for step, x in enumerate(batches):
    optimizer.zero_grad()
    size = (net.weight * float(step != 104)).abs().sum().sqrt()  # sick
    loss = (net(x).square().mean() + size) / 2
    loss.backward()
    with torch.no_grad():
        loss *= 2
    optimizer.step()
    total += loss.item()
"""


@pytest.mark.parametrize("script", [PCG, ANEW, WRITTEN], ids=["pcg", "anew", "written"])
def test_the_sick_line_is_told(script: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"train.py:{line_of(path, '# sick')}" in done.stderr
    assert "went on unwatched" not in done.stderr
    assert "Warning" not in done.stderr
