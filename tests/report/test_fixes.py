"""A fix in its place: brackets where an operator of the line would tear it apart, every kind of
file left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanodoc.diagnosis.finding import Culprit, Finding, Fix
from nanodoc.facts.source import SourceSpan
from nanodoc.report.fixes import changed_line, write_patch
from nanodoc.report.report import Report, RunInfo


def finding(line: str, old: str, patch: str, file: str = "train.py") -> Finding:
    first = line.index(old) + 1
    stripped = line.strip()
    span = SourceSpan(
        file=file,
        line=1,
        end_line=1,
        column=first,
        end_column=first + len(old),
        function="f",
        code=stripped,
        indent=line.index(stripped),
    )
    fix = Fix(title="t", patch=patch, verified=True)
    return Finding(
        code="ND106",
        name="empty-reduction",
        severity="critical",
        confidence=1.0,
        title="t",
        explanation="e",
        culprit=Culprit(kind="op", location=span),
        phase="forward",
        step=0,
        fixes=(fix,),
    )


@pytest.mark.parametrize(
    ("line", "old", "patch", "new"),
    [
        ("    return e.mean()", "e.mean()", "e.sum() / n", "return e.sum() / n"),
        (
            "    loss = 2.0 * e.mean() ** 2",
            "e.mean()",
            "e.sum() / n",
            "loss = 2.0 * (e.sum() / n) ** 2",
        ),
        ("    loss = f(e.mean(), 1)", "e.mean()", "e.sum() / n", "loss = f(e.sum() / n, 1)"),
        ("    loss = -e.mean()", "e.mean()", "e.sum() / n", "loss = -(e.sum() / n)"),
        ("    y = e.mean().log()", "e.mean()", "e.sum() / n", "y = (e.sum() / n).log()"),
        ("    y = a / b  # why", "a / b", "a / b.clamp(min=1)", "y = a / b.clamp(min=1)  # why"),
        ("    y = a / b * c", "a / b", "a / b.clamp(min=1)", "y = a / b.clamp(min=1) * c"),
    ],
)
def test_brackets(line: str, old: str, patch: str, new: str) -> None:
    one = finding(line, old, patch)
    change = changed_line(one, one.fixes[0])
    assert change is not None
    assert change[2] == new


def report(one: Finding) -> Report:
    info = RunInfo(
        entrypoint="t",
        command="run",
        config={},
        device="cpu",
        amp=None,
        seed=None,
        steps_requested=1,
        steps_run=1,
        torch="2",
        python="3",
    )
    return Report(nanodoc="0", run=info, findings=(one,))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"y = a / b\r\nz = 1\r\n", b"+y = a / c\r\n"),
        (b"\xef\xbb\xbfy = a / b\n", b"+\xef\xbb\xbfy = a / c\n"),
        (
            "y = a / b  # Größe".encode(),
            "+y = a / c  # Größe\n\\ No newline at end of file\n".encode(),
        ),
        (b"y = a / b\nz = '\x0c'\n", b"+y = a / c\n"),
    ],
)
def test_files_of_every_kind(content: bytes, expected: bytes, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    line = content.decode("utf-8-sig").split("\n")[0].rstrip("\r")
    written = write_patch(report(finding(line, "a / b", "a / c", str(path))), tmp_path)
    assert expected in Path(str(written.artifacts["patch"])).read_bytes()
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"# coding: latin-1\n" + "y = a / b  # Größe\n".encode("latin-1"))
    written = write_patch(report(finding("y = a / b", "a / b", "a / c", str(path))), tmp_path)
    assert written.artifacts.get("patch") is None
    assert written.not_checked[-1] == ("--fix", f"{path} can't be read as UTF-8")
