"""Outputs of layers are sampled while a training runs. A tensor's class may refuse what is done for
that (MONAI's MetaTensor refuses slices of a batch whose samples differ in their notes); its
exception ended the training, and was told as the user's."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import nanodoc, python

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn


class Noted(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__:
            raise ValueError("a batch of notes can't be sliced")
        return super().__torch_function__(function, types, args, kwargs or {})


torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(40):
    picture = torch.rand(8, 1, 48, 48).as_subclass(Noted)
    loss = F.mse_loss(model(picture), picture)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


def test_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    bare = python("train.py", cwd=tmp_path)
    done = nanodoc("run", "--stats", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, bare.stdout), done.stderr
    assert "ND709" not in done.stderr
