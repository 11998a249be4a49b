"""A loop that fills a replay buffer runs long without a backward pass, and is searched no more: its
first training iteration is not watched. Weights that this one ruined were laid at the line that
initialises them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

LOOP = """
model = nn.Linear(6, 3)
optimizer = torch.optim.Adam(model.parameters())  # made
for number in range(64):
    x, y = X[:8], Y[:8]
    train = number >= 48
    if train:
        out = model(x)
        loss = F.cross_entropy(out, y) + (out - out.detach()).abs().sqrt().sum()
        optimizer.zero_grad()
        loss.backward()
    if train:
        optimizer.step()
"""


def test_the_initial_values_are_not_to_blame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + LOOP)
    report = watched(path)
    (found,) = report.findings
    assert found.title.endswith("held non-finite values when watching began")
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(path, "# made")
