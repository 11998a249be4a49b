"""Unmodified scripts: the step is found and can be run again, nothing of the run changes, and what
is planted is found at its line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanodoc.config import Config
from nanodoc.pipeline.run_script import run_script
from nanodoc.report.report import Report
from nanodoc.supervise.launch import Launch
from tests.helpers import line_of, python
from tests.script.styles import HEAD, STYLES

SPOILED = "x = x + (x - x.detach()).abs().sqrt()"


@pytest.fixture(autouse=True)
def _our_own_main() -> Iterator[None]:
    """A script's run takes the process for its own; here it is the tests'."""
    main, argv, path, finders = (
        sys.modules["__main__"],
        sys.argv,
        list(sys.path),
        list(sys.meta_path),
    )
    yield
    sys.modules["__main__"] = main
    sys.argv, sys.path[:], sys.meta_path[:] = argv, path, finders


def script(folder: Path, style: str, bad: str = "pass") -> Path:
    path = folder / "train.py"
    path.write_text(HEAD.replace("BAD", bad) + STYLES[style])
    return path


def bare(path: Path) -> tuple[str, int]:
    done = python(path.name, cwd=path.parent)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout, done.returncode


def watched(path: Path, *arguments: str, kept: Path | None = None) -> Report:
    config = Config(device="cpu", snapshot_dir=str(kept or path.parent / "kept"))
    return run_script(Launch(target=str(path), arguments=arguments), config)


@pytest.mark.parametrize("style", STYLES)
def test_the_step_is_found_and_nothing_changes(
    style: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, style)
    out, status = bare(path)
    files = sorted(p.name for p in tmp_path.iterdir())
    capsys.readouterr()
    report = watched(path)
    said = capsys.readouterr().out
    assert said == out.replace("at exit\n", "")  # which comes when the process ends
    assert report.script_status == status
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({*files, "kept"})
    line = line_of(path, "# step")
    assert report.run.step_found == f"step train.py:{line}, replay of step 0 bitwise the same"
    assert [finding.code for finding in report.findings] == []


# its first backward pass is that of an iteration that is not watched
LATER = "an optimizer that steps at the top of its iteration"


@pytest.mark.parametrize(
    "style", [style for style in STYLES if "Net()" in STYLES[style] and style != LATER]
)
def test_a_planted_nan_is_found_at_its_line(style: str, tmp_path: Path) -> None:
    path = script(tmp_path, style, SPOILED)
    report = watched(path)
    found = report.findings[0]
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(path, SPOILED), found.title
    again = found.experiments[0]
    assert (again["name"], again["outcome"]) == ("same again", "fails again, bitwise the same")


def test_a_nan_that_comes_before_the_optimizer_steps_at_the_top(tmp_path: Path) -> None:
    spoiled = f"if self.calls == 4: {SPOILED}"
    path = script(tmp_path, LATER, spoiled)
    found = watched(path).findings[0]
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(path, SPOILED), found.title


def test_a_loader_that_raises_inside_a_comprehension(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        return X[i], Y[i] + 0 // (i - 30)  # raises
"""
    path = script(tmp_path, "a trainer's step in a list comprehension")
    text = path.read_text().replace("class Trainer:", data + "class Trainer:")
    path.write_text(text.replace("TensorDataset(X, Y)", "Data()"))
    found = watched(path).findings[0]
    assert found.culprit.location is not None
    assert found.culprit.location.line == line_of(path, "# raises"), found.title
    assert "ZeroDivisionError" in found.title
    shown = capsys.readouterr().err
    assert "in __getitem__" in shown
    assert f"{os.sep}nanodoc{os.sep}" not in shown
