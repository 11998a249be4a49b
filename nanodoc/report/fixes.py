"""Fixes as diffs of the user's lines, and as a .patch file for `git apply` or `patch -p1`."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nanodoc.evidence import SourceSpan
from nanodoc.report.model import Finding, Fix, Report


def changed_line(finding: Finding, fix: Fix) -> tuple[SourceSpan, str, str] | None:
    """(place, the user's line, the line with the fix), dedented; None where the fix is no change of one line."""
    where = fix.replaces or finding.culprit.location
    if fix.patch is None or where is None or where.expression is None or "\n" in fix.patch:
        return None
    line = where.code
    first, last = where.column - 1 - where.indent, where.end_column - 1 - where.indent
    return where, line, line[:first] + fix.patch + line[last:]


def write_patch(report: Report, folder: Path) -> Report:
    """Writes the best verified one-line fix of each finding to `nanodoc.patch` (numbered where that exists) and names the file in the
    report's artifacts; the user's own files are never touched. Says in `not_checked` why there is none."""
    wanted = [
        change
        for finding in report.findings
        if (change := next((c for fix in finding.fixes if fix.verified and (c := changed_line(finding, fix)) is not None), None))
        is not None
    ]
    text = _unified(wanted)
    if not text:
        why = "no fix of one line was verified" if report.findings else "nothing was found"
        return replace(report, not_checked=(*report.not_checked, ("--fix", why)))
    path, number = folder / "nanodoc.patch", 2
    while path.exists():
        path, number = folder / f"nanodoc-{number}.patch", number + 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        return replace(report, not_checked=(*report.not_checked, ("--fix", f"the patch could not be written: {error.strerror or error}")))
    return replace(report, artifacts={**report.artifacts, "patch": str(path)})


def _unified(changes: Iterable[tuple[SourceSpan, str, str]]) -> str:
    """One unified diff; a line is changed once, and a file that would no longer parse is left out."""
    by_file: dict[str, dict[int, tuple[str, str]]] = {}
    for where, old, new in changes:
        by_file.setdefault(where.file, {}).setdefault(where.line, (old, new))
    parts: list[str] = []
    for name, lines in sorted(by_file.items()):
        try:
            with open(name, encoding="utf-8", newline="") as file:
                before = file.read().splitlines(keepends=True)
        except (OSError, UnicodeDecodeError):
            continue
        after = list(before)
        for number, (old, new) in lines.items():
            if number <= len(before) and old in before[number - 1]:  # the file may have changed since
                after[number - 1] = before[number - 1].replace(old, new, 1)
        try:
            ast.parse("".join(after))
        except SyntaxError:
            continue
        shown = name.lstrip("/") if Path(name).is_absolute() else name
        parts += difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}")
    return "".join(part if part.endswith("\n") else part + "\n\\ No newline at end of file\n" for part in parts)
