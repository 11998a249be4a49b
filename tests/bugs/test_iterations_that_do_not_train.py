"""Three of four iterations of a replay-buffer loop only act: they were counted as steps of loss 0, so
that a loss of 1e16 ended at 0, and the last step that was looked at computed none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

LOOP = """
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(41):
    rows = torch.randint(0, 48, (8,))
    if number % 4 == 0:
        value, target = model(X[rows]), X[rows].sum(1)
        loss = F.mse_loss(value, target)  # compared
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(number)
"""


def test_they_are_no_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + LOOP.replace("41", "42"))
    with pytest.warns(UserWarning, match="target size"):
        report = watched(path)
    assert report.run.steps_run == 11
    assert all(loss > 0 for loss in report.vitals.losses)
    first = report.findings[0]
    assert first.name == "broadcast-loss"
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(path, "# compared")
