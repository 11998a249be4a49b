"""Gradients are clipped before the backward that makes them, and the run blows up. The overflow it
ended with stood first, or the learning rate, and the clip was told after it or not at all."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=6.0)
for step in range(60):
    x = torch.randn(16, 6)
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), 3 * x)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    loss.backward()
    optimizer.step()
"""


def test_the_clip_comes_first(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for budget in ("60", "0"):  # with and without experiments on the rate
        told = nanodoc("run", "--budget", budget, "train.py", cwd=tmp_path).stderr
        first = told.partition("critical[")[2]
        assert first.startswith("ND624"), told
        assert f"--> train.py:{line_of(script, 'clip_grad_norm_')}:" in first
