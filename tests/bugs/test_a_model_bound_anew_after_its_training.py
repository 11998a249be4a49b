"""A script that loads its best model into the global variable that its train() reads: when it was
over, the steps were run again with that model, or with none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4)
x = torch.randn(320, 8)
y = x[:, :4].argmax(1)


def train():
    for start in range(0, 320, 8):
        model.zero_grad()
        loss = F.cross_entropy(model(x[start : start + 8]).softmax(1), y[start : start + 8])
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.1)


train()
model = {best}
"""


@pytest.mark.parametrize("best", ["None", "nn.Linear(8, 9)"])
def test_the_steps_are_those_of_the_model_that_was_trained(tmp_path: Path, best: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("{best}", best))
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert "run again)" not in done.stderr
    assert "[ND612]" in done.stderr
