"""A generator that a function draws its batches from is gone when that has returned: the last steps
could not be run again, and all that is seen there was missing from the report."""

from __future__ import annotations

from pathlib import Path

from tests.helpers import line_of, nanodoc

SCRIPT = """
import torch
import torch.nn.functional as F

torch.manual_seed(0)
DATA = torch.randn(20, 32, 6)


def endless(batches):
    while True:
        for batch in batches:
            yield batch, batch.sum(1)


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = endless(DATA)
    for _ in range(steps):
        x, y = next(batches)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train(torch.nn.Linear(6, 1), 40)
"""


def test_its_last_steps_are_run_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    told = nanodoc("run", "train.py", cwd=tmp_path).stderr
    assert "critical[ND111]" in told
    assert f"--> train.py:{line_of(script, 'F.mse_loss')}:" in told
    assert "run again)" not in told


def test_one_that_is_drawn_from_by_a_loop_is_not_empty_the_second_time(tmp_path: Path) -> None:
    """What it gave is not known then: the steps are not re-run, and none is called healthy that
    ran without its batches."""
    old = """        x, y = next(batches)
        loss = F.mse_loss(model(x), y)
"""
    new = """        loss = 0
        for x, y in itertools.islice(batches, 2):
            loss = loss + F.mse_loss(model(x), y)
"""
    assert SCRIPT.count(old) == 1
    (tmp_path / "train.py").write_text("import itertools\n" + SCRIPT.replace(old, new))
    told = nanodoc("run", "train.py", cwd=tmp_path).stderr
    assert "replay of step 0 bitwise the same" not in told
    assert "not re-run" in told
