"""A GAN's generator loss was made before the discriminator's step. In a script it raises in the first
iteration, behind an optimizer's step: run again, the iteration ended with that step, and the error's version
numbers were others. The line told was that of backward()."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net_g = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
net_d = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(net_g.parameters())
optimizer_d = torch.optim.Adam(net_d.parameters())
for noise, real in zip(torch.randn(10, 8, 4), torch.rand(10, 8, 4)):
    fake = net_g(noise)
    scores = net_d(fake)
    loss_d = F.softplus(scores).mean() + F.softplus(-net_d(real)).mean()
    loss_g = F.softplus(-scores).mean()
    optimizer_d.zero_grad()
    loss_d.backward(retain_graph=True)
    optimizer_d.step()
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
"""


def test_the_line_is_the_step_that_overwrote_the_weights(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert "critical[ND504]: the optimizer stepped before the backward()" in done.stderr
    assert f"train.py:{line_of(file, 'optimizer_d.step()')}:" in done.stderr
