"""A checkpoint of which nothing fits went into a frozen encoder that no optimizer holds, and nothing
was said of it: only loads into the trained model were looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
checkpoint = {{"{prefix}" + name: tensor + 1 for name, tensor in encoder.state_dict().items()}}
encoder.load_state_dict(checkpoint, strict=False)
encoder.requires_grad_(False)
head = nn.Linear(16, 3)
optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
x = torch.randn(320, 8)
y = x[:, :3].argmax(1)
for start in range(0, 320, 16):
    with torch.no_grad():
        features = encoder(x[start : start + 16])
    loss = F.cross_entropy(head(features), y[start : start + 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("prefix", ["module.", ""])
def test_a_frozen_encoder(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(prefix=prefix))
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert ("critical[ND710]" in done.stderr) == bool(prefix)
    if prefix:
        line = 1 + SCRIPT.splitlines().index("encoder.load_state_dict(checkpoint, strict=False)")
        assert f"--> train.py:{line}:" in done.stderr
