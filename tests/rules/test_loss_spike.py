"""A single loss far above those around it; not a loss that jumps again and again by nature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers import nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed({seed})
weights, shift = 5 * torch.randn(4, 1), 5 * torch.randn(1)
fc = torch.nn.Linear(4, 1)
for step in range(300):
    drawn = torch.randn(32)
    if step == {odd}:
        drawn = 4 * drawn  # x to the fourth is then far from all others
    x = torch.stack([drawn**power for power in range(1, 5)], 1)
    fc.zero_grad()
    loss = F.smooth_l1_loss(fc(x), x @ weights + shift)
    loss.backward()
    for parameter in fc.parameters():
        parameter.data.add_(-0.1 * parameter.grad)
"""


def codes(folder: Path) -> list[str]:
    options = ("--output-format", "json", "--output", "report.json")
    done = nanodoc("run", *options, "train.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return [one["code"] for one in json.loads((folder / "report.json").read_text())["findings"]]


@pytest.mark.parametrize("seed", range(3))
def test_powers_of_random_numbers_jump_by_nature(tmp_path: Path, seed: int) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(seed=seed, odd=-1))
    assert codes(tmp_path) == []


def test_one_batch_unlike_the_others(tmp_path: Path) -> None:
    text = SCRIPT.format(seed=0, odd=150).replace("range(1, 5)", "[1, 1, 1, 1]")
    (tmp_path / "train.py").write_text(text.replace("4 * drawn", "100 * drawn"))
    assert codes(tmp_path) == ["ND615"]
