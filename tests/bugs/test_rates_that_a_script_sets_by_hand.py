"""A script sets its rate in every iteration, from a counter. Run again, each iteration counted from the
first one: all steps were tried with the rate of step 0, and what that came to was told of smaller rates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import math

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 32, 12)
y = (x[:, :, :6] * x[:, :, 6:]).argmax(2)
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
optimizer = torch.optim.Adam(model.parameters())
count = 0
for inputs, labels in zip(x, y):
    for group in optimizer.param_groups:
        group["lr"] = {rate}  # by hand
    loss = F.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count += 1
print(loss.item())
"""


@pytest.mark.parametrize(
    ("rate", "found"),
    [
        ("1.2e-5 * (count + 1) ** 2", True),
        ("4e-6 * (count + 1) ** 2", True),
        ("1e-5 if count < 10 else 0.3", True),
        ("3e-3 * min(1, (count + 1) / 40)", False),
    ],
)
def test_the_rate_of_each_step_is_tried(tmp_path: Path, rate: str, found: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT.format(rate=rate))
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert ("ND609" in done.stderr) == found
    if found:
        assert f"train.py:{line_of(file, '# by hand')}:" in done.stderr
