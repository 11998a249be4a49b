"""Found by a blind set: steps of a script's past were run again with the loop's variables of the last one, so that data
drawn by the loop's own number as a seed looked the same in every step (ND149)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nanodoc import Recipe
from nanodoc.replay.step_state import StateKeeper
from tests.helpers import diagnose, line_of, nanodoc

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


def test_an_attribute_of_a_train_step_is_the_users() -> None:
    """A recipe's own train_step may have `numbers`, too: they are neither kept nor put back."""

    class Step:
        def __init__(self) -> None:
            self.numbers = {"steps": 0}

        def __call__(self, model: Any, batch: Any, optimizer: Any) -> Any:
            self.numbers = {"steps": self.numbers["steps"] + 1}  # anew in every step
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss

    step, model = Step(), nn.Linear(2, 1)
    recipe = Recipe(
        model=model,
        train_step=step,
        data=list(torch.randn(6, 4, 2)),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    keeper = StateKeeper(recipe, torch.device("cpu"))
    capsule = keeper.take(0, [])
    assert capsule.numbers is None
    diagnose(recipe, 6)
    assert step.numbers == {"steps": 6}
