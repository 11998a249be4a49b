"""Found by a blind set: steps of a script's past were run again with the loop's variables of the last one, so that data
drawn by the loop's own number as a seed looked the same in every step (ND149)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
from torch import nn


def chains(number, seed):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(number, 4, generator=g)


torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
{head}
    x = chains(16, {seed})
    loss = nn.functional.mse_loss(model(x), x[:, :2])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {tail}
"""
FOR = ("for i in range(12):", "pass")
WHILE = ("i = 0\nwhile i < 12:", "i += 1")


@pytest.mark.parametrize(
    ("loop", "seed", "told"), [(FOR, "i", False), (WHILE, "i", False), (FOR, "7", True)]
)
def test_a_seed_of_each_step(tmp_path: Path, loop: tuple[str, str], seed: str, told: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(head=loop[0], tail=loop[1], seed=seed))
    done = nanodoc("run", "--output-format", "json", "--output", "r.json", "train.py", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_text())["findings"]
    lines = [f["culprit"]["location"]["line"] for f in found if f["code"] == "ND149"]
    assert lines == ([line_of(script, "manual_seed(seed)")] if told else []), done.stderr
