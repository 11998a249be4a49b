"""On a GPU: steps that are watched by their losses alone. What goes wrong in one of them is found,
whether nanodoc drives the steps or a script runs its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nanodoc.loop.brief_steps import FULL_AT_FIRST
from tests.gpu import DEVICE, on_a_gpu
from tests.helpers import fresh_nanodoc, line_of
from tests.loop.test_brief_steps import BRIEF, STEPS, recipe, run, told
from tests.script.test_brief_iterations import BRIEF as BRIEF_OF_SCRIPT
from tests.script.test_brief_iterations import CLASSIFIER, brief_steps, written

pytestmark = on_a_gpu

ON_DEVICE = (
    CLASSIFIER.replace("model = Net()", f'model = Net().to("{DEVICE.type}")')
    .replace("model(x +", f'model(x.to("{DEVICE.type}") +')
    .replace("F.cross_entropy(out, y)", f'F.cross_entropy(out, y.to("{DEVICE.type}"))')
)


def test_most_steps_are_brief_and_change_nothing(tmp_path: Path) -> None:
    ours = recipe(-1, "")
    outcome, brief = run(ours, tmp_path / "a", device=DEVICE)
    theirs = recipe(-1, "")
    in_full, _ = run(theirs, tmp_path / "b", briefly=False, device=DEVICE)
    assert len(brief) > 0.6 * (STEPS - FULL_AT_FIRST)
    assert outcome.losses == in_full.losses
    for a, b in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("odd", ["input", "gradient"])
def test_what_goes_wrong_is_told_as_ever(odd: str, tmp_path: Path) -> None:
    outcome, brief = run(recipe(BRIEF, odd), tmp_path / "a", device=DEVICE)
    in_full, _ = run(recipe(BRIEF, odd), tmp_path / "b", briefly=False, device=DEVICE)
    assert BRIEF - 1 in brief or BRIEF - 2 in brief
    assert told(outcome) == told(in_full)


def test_a_script_is_left_as_it_is(tmp_path: Path) -> None:
    written(tmp_path, ON_DEVICE)
    bare = subprocess.run(
        [sys.executable, "train.py", "101", ""],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert bare.returncode == 0, bare.stderr
    watched = fresh_nanodoc("run", "--quiet", "train.py", "--", "101", "", cwd=tmp_path)
    assert watched.returncode == 0, watched.stdout + watched.stderr
    assert watched.stdout == bare.stdout
    assert len(brief_steps(tmp_path)) > 60


@pytest.mark.parametrize("odd", ["value", "gradient"])
def test_a_sick_iteration_of_a_script_is_told_at_its_line(odd: str, tmp_path: Path) -> None:
    file = written(tmp_path, ON_DEVICE)
    output = ("--output", "report.json", "--output-format", "json")
    done = fresh_nanodoc(
        "run", "--quiet", *output, "train.py", "--", str(BRIEF_OF_SCRIPT), odd, cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    finding = report["findings"][0]
    assert finding["culprit"]["location"]["line"] == line_of(file, f"# {odd}")
    assert finding["step"] == BRIEF_OF_SCRIPT
    assert BRIEF_OF_SCRIPT - 1 in brief_steps(tmp_path) or BRIEF_OF_SCRIPT - 2 in brief_steps(
        tmp_path
    )
