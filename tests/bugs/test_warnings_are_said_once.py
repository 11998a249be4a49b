"""torch's warnings were printed again by every replay and experiment."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc

TRAIN = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    def loss_fn(m, x):
        out = m(x).squeeze(1)
        return ((out - out.mean()) / (out.std() + 1e-6)).pow(2).mean()
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(4, 4), torch.randn(1, 4)], "optimizer": torch.optim.SGD(model.parameters(), lr=0.1), "max_steps": 2}
"""


def test_a_step_run_again_says_nothing_new(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = nanodoc("run", "train.py:build", "--quiet", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("degrees of freedom") == 1
