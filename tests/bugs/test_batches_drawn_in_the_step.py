"""A script that draws its batch in its own step has no batch that is given to it: predictions that were
compared with every target there went unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import line_of
from tests.script.styles import HEAD
from tests.script.test_styles import _our_own_main, watched

__all__ = ["_our_own_main"]

LOOP = """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(20):
    x = torch.randn(8, 6)
    y = x[:, 0] * 2
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        ("((model(x) - y) ** 2).mean()", ["broadcast-loss"]),
        ("((model(x)[:, 0] - y) ** 2).mean()", []),
        # a distance from every prediction to every point of a grid
        ("(model(x) - torch.linspace(-1, 1, 8)).abs().min(1).values.mean()", []),
        # all pairs, said in the same line
        ("((model(x)[:, 0][:, None] - y).abs() * (x[:, 0] > 0)).mean()", []),
    ],
    ids=["column against row", "row against row", "grid", "all pairs"],
)
def test_predictions_against_targets(
    loss: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(HEAD.replace("BAD", "pass") + LOOP.replace("LOSS", f"{loss}  # compared"))
    told = [one for one in watched(path).findings if one.severity != "info"]
    assert [one.name for one in told] == found
    for one in told:
        assert one.culprit.location is not None
        assert one.culprit.location.line == line_of(path, "# compared")
