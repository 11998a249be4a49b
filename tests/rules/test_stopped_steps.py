"""ND605: an optimizer whose steps change nothing any more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

BEGIN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
x = torch.randn(512, 8)
y = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
"""
PUT_BACK = """
for step in range(96):
    i = step % 16 * 32
    loss = F.cross_entropy(model(x[i:i + 32]), y[i:i + 32])
    optimizer.zero_grad()
    loss.backward()
    kept = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    if step > {from_step}:
        with torch.no_grad():
            for p, old in zip(model.parameters(), kept):
                p.copy_(old)
"""
ACCUMULATED = """
for step in range(110):
    i = step % 16 * 32
    (F.cross_entropy(model(x[i:i + 32]), y[i:i + 32]) / 40).backward()
    if (step + 1) % 40 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
CONVERGED = """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
y = x.sum(1, keepdim=True) + 0.01 * torch.randn(512, 1)
for step in range(600):
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
IN_STAGES = """
critic = nn.Linear(4, 1)
second = torch.optim.Adam(critic.parameters(), lr=3e-3)
for step in range(120):
    i = step % 16 * 32
    scores = model(x[i:i + 32])
    if step < 40:
        loss = F.cross_entropy(scores, y[i:i + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    else:  # gradients reach the first network, too
        loss = (critic(scores) - 1).square().mean()
        second.zero_grad()
        loss.backward()
        second.step()
"""


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (PUT_BACK.format(from_step=20), True),
        (PUT_BACK.format(from_step=80), False),  # too short to say
        (ACCUMULATED, False),
        (IN_STAGES, False),
        (CONVERGED, False),  # the steps are smaller than the last digit of the weights
    ],
)
def test_steps_that_change_nothing_any_more(tmp_path: Path, steps: str, *, told: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(BEGIN + steps)
    nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["findings"]
    stopped = [f for f in found if f["code"] == "ND605"]
    assert len(stopped) == told
    for one in stopped:
        assert one["severity"] == "critical"
        assert one["culprit"]["location"]["line"] == line_of(script, "optimizer = ")
        assert 20 < one["step"] <= 30
