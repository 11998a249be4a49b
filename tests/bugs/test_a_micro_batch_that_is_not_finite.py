"""The loss of a micro-batch was NaN, and the optimizer stepped micro-batches later: that was taken
for a step that the training leaves out on purpose, and the later one was blamed for its gradients."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for step in range(40):
    x = torch.randn(8, 4)
    mask = torch.zeros(8) if step == 21 else torch.ones(8)
    loss = ((net(x)[:, 0] - x.sum(1)).square() * mask).sum() / mask.sum()  # 0/0
    {guard}loss.backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize(("guard", "told"), [("", True), ("if loss.isfinite(): ", False)])
def test_the_micro_batch_is_blamed(tmp_path: Path, guard: str, told: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(guard=guard))
    done = nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    findings = json.loads((tmp_path / "r.json").read_text())["findings"]
    found = [(f["code"], f["step"], f["culprit"]["location"]["line"]) for f in findings]
    # the first step is that of the first optimizer step, in the fourth iteration
    assert found == ([("ND202", 18, line_of(path, "# 0/0"))] if told else []), done.stderr
