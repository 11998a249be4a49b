"""A GAN's step switches its generator's gradients off for the discriminator's turn (as Lightning's
`toggle_optimizer` does), and judges a fake that was made without a graph in the generator's. The
replay without the freezing showed that it is not to blame, and the freezing stood first."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
generator, judge = nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(8, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
optimizer_d = torch.optim.Adam(judge.parameters(), lr=1e-3)


def switch(network, on):
    for parameter in network.parameters():
        parameter.requires_grad_(on)


for step in range(30):
    real, z = torch.randn(16, 8), torch.randn(16, 4)
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    fake = generator(z).detach()
    switch(generator, False)
    loss_d = F.binary_cross_entropy_with_logits(judge(real), ones)
    loss_d = loss_d + F.binary_cross_entropy_with_logits(judge(fake), zeros)
    optimizer_d.zero_grad()
    loss_d.backward()
    optimizer_d.step()
    switch(generator, True)
    loss_g = F.binary_cross_entropy_with_logits(judge(fake), ones)
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
    print(step, loss_d.item(), loss_g.item())
"""


def test_the_cut_stands_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    told = nanodoc("run", "train.py", cwd=tmp_path).stderr
    first = told.partition("critical[")[2]
    assert f"--> train.py:{line_of(script, 'fake = generator(z).detach()')}:" in first, told
    assert "switched off inside the step" not in told, told
