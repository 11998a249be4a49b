"""ND508: a layer that a line froze at its first values, and with which trained the run comes
further."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import nanodoc

SCRIPT = """import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4))
{freeze}
optimizer = torch.optim.Adam({given}, lr=2e-2)
truth = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
for step in range(120):
    x = torch.randn(64, 8)
    loss = F.mse_loss(model(x), truth(x).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ALL = "model.parameters()"


def findings(folder: Path, freeze: str, given: str = ALL) -> list[dict[str, Any]]:
    (folder / "train.py").write_text(SCRIPT.format(freeze=freeze, given=given))
    nanodoc("run", "--output", "json=report.json", "train.py", cwd=folder)
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return [one for one in report["findings"] if one["code"] == "ND508"]


def test_a_frozen_layer_that_would_help(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, "model[0].requires_grad_(False)")
    assert found["culprit"]["location"]["line"] == 7
    assert "early steps end at a loss of" in found["explanation"]
    assert found["severity"] == "info"  # random features are a method
    (found,) = findings(tmp_path, "model[2].requires_grad_(False)")
    assert found["severity"] == "warning"


@pytest.mark.parametrize(
    ("freeze", "given"),
    [
        # the optimizer was not given what is frozen
        ("model[0].requires_grad_(False)", "model[2].parameters()"),
        # frozen values that came from elsewhere
        (
            "model[0].load_state_dict(nn.Linear(8, 4).state_dict()); "
            "model[0].requires_grad_(False)",
            ALL,
        ),
        # a bias that does not matter
        ("model[0].bias.requires_grad_(False)", ALL),
    ],
)
def test_what_is_frozen_on_purpose(tmp_path: Path, freeze: str, given: str) -> None:
    assert not findings(tmp_path, freeze, given)
