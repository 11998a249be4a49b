"""A proxy that resolves what it stands for when it is asked, as web and configuration libraries
have, and raises while there is nothing: looking into it cost the watching."""

from __future__ import annotations

import json
from pathlib import Path

from tests.helpers import nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

class Lazy:
    def __getattribute__(self, name):
        if name == "__dict__":
            raise RuntimeError("working outside of application context")
        return object.__getattribute__(self, name)

config = Lazy()
torch.manual_seed(0)
model, slow = nn.Linear(4, 2), nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)

def learn(config):
    states, after, paid = torch.randn(16, 4), torch.randn(16, 4), torch.randn(16)
    with torch.no_grad():
        wanted = paid + 0.9 * slow(after).max(1).values
    loss = F.mse_loss(model(states)[:, 0], wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

for step in range(60):
    learn(config)
"""


def test_it_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    assert "internal error" not in done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["vitals"]["steps"] == 60
    assert not [why for why in report["not_checked"] if "own" in why["why"]]
