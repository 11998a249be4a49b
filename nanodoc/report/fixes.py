"""Fixes as diffs of the user's lines, and as a .patch file for `git apply` or `patch -p1`."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from nanodoc.artifacts import make_folder
from nanodoc.diagnosis.finding import Finding, Fix
from nanodoc.facts.source import SourceSpan
from nanodoc.report.report import Report


def changed_line(finding: Finding, fix: Fix) -> tuple[SourceSpan, str, str] | None:
    """(place, the user's line, the line with the fix), dedented; None where the fix is no change of
    one line."""
    where = fix.replaces or finding.culprit.location
    if fix.patch is None or where is None or where.expression is None or "\n" in fix.patch:
        return None
    line = where.code
    first, last = where.column - 1 - where.indent, where.end_column - 1 - where.indent
    return (
        where,
        line,
        line[:first]
        + _in_place(fix.patch, where.expression, line[:first], line[last:])
        + line[last:],
    )


def _in_place(patch: str, old: str, before: str, after: str) -> str:
    """The new expression as it stands where the old one stood: in brackets where an operator of the
    line would tear it apart."""
    try:
        new, known = ast.parse(patch, mode="eval").body, ast.parse(old, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # of a stranger's report
        return patch
    if not isinstance(new, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp)) or type(
        new
    ) is type(known):
        return patch
    left, right = before.rstrip(), after.lstrip()
    alone = (not left or left[-1] in "=([{,:" or left.endswith("return")) and (
        not right or right[0] in ")]},:#;"
    )
    return patch if alone else f"({patch})"


def write_patch(report: Report, folder: Path) -> Report:
    """Writes the best verified one-line fix of each finding to `nanodoc.patch` (numbered where that
    exists) and names the file in the report's artifacts; the user's own files are never touched.
    Says in `not_checked` why there is none."""
    wanted = [
        change
        for finding in report.findings
        if (
            change := next(
                (
                    c
                    for fix in finding.fixes
                    if fix.verified and (c := changed_line(finding, fix)) is not None
                ),
                None,
            )
        )
        is not None
    ]
    text, left_out = _unified(wanted)
    if not text:
        why = left_out or (
            "no one-line fix was verified" if report.findings else "nothing was found"
        )
        return replace(report, not_checked=(*report.not_checked, ("--fix", why)))
    path, number = folder / "nanodoc.patch", 2
    while path.exists():
        path, number = folder / f"nanodoc-{number}.patch", number + 1
    try:
        make_folder(folder)
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except OSError as error:
        return replace(
            report,
            not_checked=(
                *report.not_checked,
                ("--fix", f"the patch could not be written: {error.strerror or error}"),
            ),
        )
    return replace(report, artifacts={**report.artifacts, "patch": str(path)})


def _unified(changes: Iterable[tuple[SourceSpan, str, str]]) -> tuple[str, str]:
    """One unified diff, and why a file was left out: one that can't be read as UTF-8, or would no
    longer parse. A line is changed once."""
    by_file: dict[str, dict[int, tuple[str, str]]] = {}
    for where, old, new in changes:
        by_file.setdefault(where.file, {}).setdefault(where.line, (old, new))
    parts: list[str] = []
    left_out = ""
    for name, lines in sorted(by_file.items()):
        try:
            with open(name, encoding="utf-8", newline="") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):
            left_out = f"{name} can't be read as UTF-8"
            continue
        before = [line + "\n" for line in text.split("\n")]  # a form feed ends no line of Python
        before[-1] = before[-1][:-1]
        before = before if before[-1] else before[:-1]
        after = list(before)
        for number, (old, new) in lines.items():
            # the file may have changed since
            if number <= len(before) and old in before[number - 1]:
                after[number - 1] = before[number - 1].replace(old, new, 1)
        try:
            ast.parse("".join(after).removeprefix("\ufeff"))
        except SyntaxError:
            left_out = f"{name} would not parse with the fix"
            continue
        shown = name.lstrip("/") if Path(name).is_absolute() else name
        parts += difflib.unified_diff(before, after, f"a/{shown}", f"b/{shown}")
    return "".join(
        part if part.endswith("\n") else part + "\n\\ No newline at end of file\n" for part in parts
    ), left_out
