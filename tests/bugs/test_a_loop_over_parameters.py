"""A step that goes through the parameters of its model (to move, clip or average them) drew them, it
seemed, as a loader's batches are drawn: they were taken for the batch, and no line was found that
moves the weights."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
batches = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(40)]
lr = 0.5
for step, (x, y) in enumerate(batches):
    model.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    if step % 4 == 3:
        lr /= 0.25
    print(step, loss.item())
"""


def test_the_line_that_moves_the_weights_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert "ND606" in done.stderr, done.stderr
    found = done.stderr.partition("[ND606]")[2]
    assert "p.data.add_(p.grad, alpha=-lr)" in found.partition("confidence")[0], done.stderr
