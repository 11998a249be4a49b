"""A step that was run again went through a script's digest twice: what a digest has taken in cannot
be put back, so that the step is not run again where it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

SCRIPT = """
import hashlib
import zlib

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
digest = {digest}
for step in range(60):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    digest.{method}(model.weight.detach().numpy().tobytes())
print({end})
"""


@pytest.mark.parametrize(
    ("digest", "method", "end"),
    [
        ("hashlib.sha256()", "update", "digest.hexdigest()"),
        ("hashlib.blake2b()", "update", "digest.hexdigest()"),
        ("zlib.compressobj()", "compress", "digest.flush().hex()[-80:]"),
    ],
)
def test_it_is_as_without_nanodoc(digest: str, method: str, end: str, tmp_path: Path) -> None:
    text = SCRIPT.replace("{digest}", digest).replace("{method}", method).replace("{end}", end)
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    bare = python("train.py", cwd=tmp_path)
    assert nanodoc("run", "train.py", cwd=tmp_path).stdout == bare.stdout != ""
