"""Every unusual training is bitwise the same with us watching, at every step, however closely we
look: as a recipe, with every look that can be asked for, and as a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.helpers import nanodoc, python
from tests.neutrality.all_recipes import RECIPES, STEPS

ROOT = Path(__file__).resolve().parents[2]
RECIPE = """
import os, sys
sys.path.insert(0, os.environ["TESTS"])
from nanodoc.loop import brief_steps
from tests.neutrality import ledger
from tests.neutrality.all_recipes import watched

brief_steps.FULL_AT_FIRST = 6  # those that follow are watched by their losses alone

def build():
    ledger.written_at_exit()
    return watched(os.environ["RECIPE"])
"""
# what the documentation of recipes says that nanodoc does with one
LOOP = """
import os, sys
sys.path.insert(0, os.environ["TESTS"])
import torch
from nanodoc.loop import brief_steps
from tests.neutrality import ledger
from tests.neutrality.all_recipes import watched

brief_steps.FULL_AT_FIRST = 6
ledger.written_at_exit()
made = watched(os.environ["RECIPE"])
model, data, loss_fn = made["model"], made["data"], made.get("loss_fn")
given = made["optimizer"]
optimizers = given if isinstance(given, list) else [given]
accumulate, clip, amp = made.get("accumulate", 1), made.get("clip_grad_norm"), made.get("amp")

def batches():
    while True:
        yield from data

source = batches()
for step in range(made["max_steps"]):
    if loss_fn is None:
        made["train_step"](model, next(source), given)
        continue
    parts = [next(source) for _ in range(accumulate)]
    for optimizer in optimizers:
        optimizer.zero_grad()
    for batch in parts:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp is not None):
            loss = loss_fn(model, batch)
        (loss / accumulate if accumulate > 1 else loss).backward()
        del loss
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    for optimizer in optimizers:
        optimizer.step()
    if "scheduler" in made:
        made["scheduler"].step()
print("done", step)
"""
REPLACING = """
from tests.neutrality import replaced
replaced.replace_all()
"""
# each of its thousands of tensors goes through replaced functions hundreds of times
TOO_SLOW = ("thousands_of_small_tensors",)
CLOSELY = (
    *("--stats", "--log-every", "1", "--trace-steps", "2,5", "--checkpoint-every", "1"),
    "--frames",
)


@pytest.fixture(params=sorted(RECIPES))
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(RECIPE)
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.setenv("RECIPE", request.param)
    monkeypatch.setenv("TESTS", str(ROOT))
    return tmp_path


def bare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """The plain loop's ledger, and what it printed."""
    monkeypatch.setenv("LEDGER", str(folder / "bare"))
    done = python("loop.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return (folder / "bare").read_text().splitlines(), done.stdout


def watched(
    folder: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], str]:
    file = folder / "watched"
    file.unlink(missing_ok=True)
    monkeypatch.setenv("LEDGER", str(file))
    before = {path.name for path in folder.iterdir()}
    options = ("--quiet", "--budget", "5", "--snapshot-dir", "s")
    done = nanodoc("run", *options, *arguments, cwd=folder)
    assert done.returncode in (0, 1), done.stderr
    assert "nanodoc's own" not in done.stdout + done.stderr
    after = {path.name for path in folder.iterdir()}
    assert after - before <= {"s", "watched", "__pycache__", "report.json", "ours"}
    return file.read_text().splitlines(), done.stdout


def assert_the_same(expected: list[str], found: list[str]) -> None:
    """The training's own lines come first; what is run again when it is over follows."""
    assert len(expected) >= STEPS
    for number, (wanted, line) in enumerate(zip(expected, found, strict=False)):
        pairs = zip(wanted.split(), line.split(), strict=True)
        assert not [a for a, b in pairs if a != b], f"line {number}"
    assert len(found) >= len(expected)


def test_nothing_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, printed = bare(folder, monkeypatch)
    recipe, _ = watched(folder, "train.py:build", monkeypatch=monkeypatch)
    assert_the_same(expected, recipe)
    closely, _ = watched(folder, "train.py:build", *CLOSELY, monkeypatch=monkeypatch)
    assert_the_same(expected, closely)
    report = ("--output", "report.json", "--output-format", "json")
    script, out = watched(folder, *report, "loop.py", monkeypatch=monkeypatch)
    assert script == expected  # what was run again took its lines back
    assert out == printed


def test_nothing_changes_where_the_script_has_replaced_what_we_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that replaces `torch.Tensor.to` and the like gets its own functions, also in steps
    that are run again, and nanodoc gets torch's: the random numbers that the replacements draw are
    those of the training alone."""
    if os.environ["RECIPE"] in TOO_SLOW:
        pytest.skip("it takes minutes")
    if "thread" in os.environ["RECIPE"]:
        pytest.skip("hooks that run in a thread of the training's call its functions: see limits")
    text = LOOP.replace("ledger.written_at_exit()", f"{REPLACING}\nledger.written_at_exit()")
    (folder / "loop.py").write_text(text)
    monkeypatch.setenv("OURS", str(folder / "ours"))
    monkeypatch.setenv("LEDGER", str(folder / "bare"))
    if python("loop.py", cwd=folder).returncode:
        # as TorchScript, torch.func and compiled code, which allow no such function in theirs
        pytest.skip("plain Python raises where its functions are replaced so")
    expected, printed = bare(folder, monkeypatch)
    report = ("--output", "report.json", "--output-format", "json")
    script, out = watched(folder, *report, "loop.py", monkeypatch=monkeypatch)
    assert (folder / "ours").read_text() == ""
    assert script == expected
    assert out == printed
