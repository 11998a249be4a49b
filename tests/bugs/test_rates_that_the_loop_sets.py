"""Many loops set the learning rate of each step themselves, in its body: a smaller rate, tried on
the run's steps, was set back by them and changed nothing. And a loop that draws its batches by
`next` would have run every one of these steps on the batch of the last: each has its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

LOOP = """
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
def rate(step):
    return 400.0
step = 0
SETUP
while step < 24:
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    BATCH
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
"""
OWN = "rows = torch.randint(0, 48, (8,)); x, y = X[rows], Y[rows]"
NEXT = "x, y = next(batches)"
LOADER = "import itertools; batches = itertools.cycle(list(DataLoader(TensorDataset(X, Y), 8)))"


@pytest.mark.parametrize(("setup", "batch"), [("pass", OWN), (LOADER, NEXT)])
def test_a_smaller_rate_is_one(
    setup: str, batch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    text = HEAD.replace("BAD", "pass") + LOOP.replace("SETUP", setup).replace("BATCH", batch)
    path.write_text(text)
    report = watched(path)
    first = report.findings[0]
    assert first.name == "divergence"
    assert first.culprit.location is not None
    assert first.culprit.location.line == line_of(path, "return 400.0")
    tried = {row["name"]: row["outcome"] for row in first.experiments}
    assert "passes" in tried.values(), tried
