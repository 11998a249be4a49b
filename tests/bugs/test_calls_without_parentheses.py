"""`optimizer.zero_grad` without its parentheses: the statement is named, and not the backward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(300):
    x = torch.randn(16, 6)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), x[:, :3].argmax(1))
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "code"),
    [("optimizer.zero_grad", "ND608"), ("optimizer.step", "ND628"), ("loss.backward", "ND640")],
)
def test_the_statement_is_named(tmp_path: Path, call: str, code: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace(f"{call}()", call))
    told = nanodoc("run", "train.py", cwd=tmp_path).stderr
    assert f"[{code}]" in told
    assert f"--> train.py:{line_of(script, call)}:" in told
