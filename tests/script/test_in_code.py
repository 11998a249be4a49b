"""nanodoc in a loop of one's own, in a notebook's cell, and in a test."""

from __future__ import annotations

import contextlib
import linecache
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanodoc
from nanodoc.errors import UsageError
from tests.helpers import line_of

DATA = [(torch.randn(8, 4), torch.randint(0, 2, (8,))) for _ in range(6)]


def trained(bad: bool, watched: bool, tmp_path: Path) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if not watched:
        for _, (x, y) in enumerate(DATA):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model, None
    with nanodoc.watch(model, optimizer, snapshot_dir=str(tmp_path)) as watch:
        for i, (x, y) in enumerate(watch.steps(DATA)):
            optimizer.zero_grad()
            out = model(x)
            if bad and i == 3:
                out = out / (out - out)
            nn.functional.cross_entropy(out, y).backward()
            optimizer.step()
    return model, watch


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    bare, _ = trained(False, False, tmp_path)
    model, watch = trained(False, True, tmp_path)
    report = watch.report()
    assert report.verdict == "nothing found"
    assert report.run.steps_run == 6
    assert report.run.step_found.endswith("replay of step 0 bitwise the same")
    assert all(
        torch.equal(a, b) for a, b in zip(bare.parameters(), model.parameters(), strict=True)
    )


def test_a_sick_step_ends_the_block(tmp_path: Path) -> None:
    _, watch = trained(True, True, tmp_path)
    report = watch.report()
    assert report.run.steps_run == 4
    found = report.findings[0]
    assert found.code == "ND202"
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(__file__, "out = out / (out - out)")
    assert "division by zero" in watch._repr_html_()


def test_an_error_of_the_loops_own_is_raised(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = nanodoc.watch(model, optimizer, snapshot_dir=str(tmp_path))
    with pytest.raises(UsageError, match="after the `with` block"), watch:
        watch.report()
    watch = nanodoc.watch(model, optimizer, snapshot_dir=str(tmp_path))

    def run() -> None:
        with watch:
            for number, (x, _) in enumerate(watch.steps(DATA)):
                model(x).sum().backward()
                optimizer.step()
                print(1 / (2 - number))

    with pytest.raises(ZeroDivisionError):
        run()
    assert watch.report().findings[0].title.startswith("ZeroDivisionError")
    with pytest.raises(UsageError, match="has been used"):
        watch.__enter__()


def test_a_loop_that_hides_the_batches_is_told(tmp_path: Path) -> None:
    with (
        nanodoc.watch(snapshot_dir=str(tmp_path)) as watch,
        pytest.warns(UserWarning, match="this loop is not watched"),
    ):
        for _ in zip(watch.steps(DATA), range(2), strict=False):
            pass


CELL = """
with nanodoc.watch(model, optimizer, snapshot_dir=folder) as watch:
    for x, y in watch.steps(DATA):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""


def test_a_cell_that_is_run_twice(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    names = {
        "__name__": "__main__",
        "nanodoc": nanodoc,
        "torch": torch,
        "DATA": DATA,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "folder": str(tmp_path),
    }
    for number in range(2):
        file = f"<ipython-input-{number}-cell>"
        linecache.cache[file] = (len(CELL), None, CELL.splitlines(keepends=True), file)
        exec(compile(CELL, file, "exec"), names)
        report = names["watch"].report()  # type: ignore[attr-defined]  # the cell made it
        assert report.verdict == "nothing found"
        assert report.run.step_found.endswith("replay of step 0 bitwise the same")


TEST = """
import torch

def recipe(bad):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def loss_fn(model, batch):
        loss = model(batch).pow(2).mean()
        return loss / (loss - loss) if bad else loss
    return {"model": model, "loss_fn": loss_fn, "data": [torch.randn(8, 3) for _ in range(5)], "optimizer": optimizer}

def test_healthy(assert_healthy):
    assert assert_healthy(recipe(False), steps=10).run.steps_run == 10

def test_sick(assert_healthy):
    assert_healthy(recipe(True))
"""


def test_the_pytest_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_training.py").write_text(TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_training.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "critical[ND202]: division by zero" in done.stdout
    assert "--> test_training.py:9:16 in recipe.loss_fn" in done.stdout
    assert not list(tmp_path.glob("nanodoc-*"))


@pytest.mark.parametrize("way", ["break", "exit"])
def test_a_block_that_is_left_for_its_loss(way: str, tmp_path: Path) -> None:
    """The loop looks at its loss itself, and no mark stands behind it."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    watch = nanodoc.watch(model, optimizer, snapshot_dir=str(tmp_path))
    with contextlib.suppress(SystemExit), watch:
        for i, (x, y) in enumerate(watch.steps(DATA)):
            out = model(x)
            if i == 3:
                out = out / out.sub(out)
            loss = nn.functional.cross_entropy(out, y)
            if not torch.isfinite(loss):
                if way == "exit":
                    sys.exit(1)
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    report = watch.report()
    found = report.findings[0]
    assert (found.code, found.step) == ("ND202", 3)
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(__file__, "out = out / out.sub(out)")
