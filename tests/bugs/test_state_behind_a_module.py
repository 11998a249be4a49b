"""What a step counts in a module of the user's, or in a function from a table, was counted once more
by the replay of a script's first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import nanodoc, python

COUNTING = """
number = 0
seen = {"steps": 0}
rows = []

def note(loss):
    global number
    number += 1
    seen["steps"] += 1
    rows.append(round(float(loss), 6))
"""
SCRIPT = """
from functools import partial
import torch
import counting

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tools = {"note": counting.note, "half": partial(counting.note)}
for step in range(4):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    NOTE
    optimizer.step()
print(counting.number, counting.seen, counting.rows)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "note",
    [
        "counting.note(loss)",
        "tools['note'](loss)",
        "tools['half'](loss)",
        "counting.number += 1; counting.seen['steps'] += 1; counting.rows.append(float(loss))",
    ],
)
def test_it_is_put_back(tmp_path: Path, note: str) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    (tmp_path / "train.py").write_text(SCRIPT.replace("NOTE", note))
    own = python("train.py", cwd=tmp_path)
    assert own.stdout.startswith("4 {'steps': 4}"), own.stderr
    done = nanodoc("run", "train.py", cwd=tmp_path)
    assert done.stdout == own.stdout
    assert "replay of step 0 bitwise the same" in done.stderr
