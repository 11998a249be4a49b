"""An inner optimizer steps before the first backward pass of an iteration, and what it trains is
differentiated over steps. The start of the first step was kept too late, and the tensor got a graph
by the second run of that step: the script trained on other values, or ended with torch's "you can
only change requires_grad flags of leaf variables", told as its own fault."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
fast = torch.zeros(3)
inner = torch.optim.SGD([fast], lr=0.1, momentum=0.9, differentiable=True)
data = torch.utils.data.TensorDataset(torch.randn(480, 3))
for (x,) in torch.utils.data.DataLoader(data, batch_size=6):
    optimizer.zero_grad()
    BEFORE
    loss = (fast * x.mean(0)).sum() * 0.01 + 0.1 * model(x).square().mean()
    loss.backward(retain_graph=True)
    BEHIND
    optimizer.step()
print("weights", model.weight.tolist(), fast.tolist(), fast.is_leaf)
"""


INNER = "fast.grad = (model.weight * 1.0).reshape(3); inner.step()"


def told(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("weights")]


@pytest.mark.parametrize(
    ("before", "behind", "verdict"),
    # behind it: the tensor has no graph before the second step, whose momentum has one; some steps
    # that were run again to show that they come to the same changed it
    [
        (INNER, "pass", "verdict: nothing found"),
        ("pass", INNER, "verdict: warning (2 warning, 80 steps)"),
    ],
    ids=["before", "behind"],
)
def test_the_training_is_what_it_is(tmp_path: Path, before: str, behind: str, verdict: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("BEFORE", before).replace("BEHIND", behind))
    plain = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    watched = nanodoc("run", script.name, cwd=tmp_path)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert verdict in watched.stderr
    # that graph does grow with every step
    assert watched.stderr.count("warning[ND510]") == watched.stderr.count("warning[")
    assert told(watched.stdout) == told(plain.stdout) != []
