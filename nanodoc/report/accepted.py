"""Findings that the user has accepted: by a comment at their line, by `allow` in the configuration,
or by a baseline. They are told, and count neither for the verdict nor for the exit code."""

from __future__ import annotations

import io
import linecache
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from nanodoc.diagnosis.finding import Finding
from nanodoc.diagnosis.rule import matches
from nanodoc.report.baseline import Known, known_as
from nanodoc.report.report import Accepted, Report, UnusedIgnore
from nanodoc.text import clean

_COMMENT = re.compile(r"#\s*nanodoc:\s*ignore\[(?P<codes>[^\[\]]{0,200})\](?P<reason>[^#]*)")
_LARGEST = 8 * 2**20  # characters of a source file
_MOST_TOLD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignore:
    """A comment `# nanodoc: ignore[ND603] reason`."""

    file: str
    line: int
    codes: tuple[str, ...]
    reason: str
    lines: range
    """The lines of its statement, whose findings it accepts."""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


def accept(
    report: Report,
    *,
    allow: Sequence[Mapping[str, str]] = (),
    baseline: Sequence[Known] = (),
    baseline_file: str = "",
    all_rules: bool = True,
) -> Report:
    """The report with what is accepted set apart. `all_rules`: no rule was left out, so that a
    comment which accepts nothing is one too many. Of a run that broke, no critical finding is
    accepted: one of them ended it."""
    ignores = {file: ignores_of(file) for file in _files(report)}
    waiting = Counter(baseline)
    findings: list[Finding] = []
    accepted: list[Accepted] = []
    for finding in report.findings:
        one = _in_words(finding, ignores, allow)
        if report.broke and finding.severity == "critical":
            findings.append(finding)
        elif one is not None:
            accepted.append(one)
        elif waiting[known_as(finding)] > 0:
            waiting[known_as(finding)] -= 1
            accepted.append(Accepted(finding=finding, by="baseline", place=baseline_file))
        else:
            findings.append(finding)
    used = {one.place for one in accepted if one.by == "comment"}
    unused = [
        UnusedIgnore(file=ignore.file, line=ignore.line, codes=ignore.codes)
        for rows in ignores.values()
        for ignore in rows
        if ignore.place not in used
    ]
    return replace(
        report,
        findings=tuple(findings),
        accepted=(*report.accepted, *accepted),
        unused_ignores=tuple(unused) if all_rules and report.whole else report.unused_ignores,
    )


def accepted_lines(report: Report) -> list[str]:
    """What was accepted, and the comments that accept nothing, each in a line of clean text."""
    lines = []
    by_baseline = [one for one in report.accepted if one.by == "baseline"]
    for one in report.accepted:
        if one.by != "baseline":
            reason = f": {clean(one.reason)}" if one.reason else ""
            if one.by == "comment":
                rule = f"{one.finding.code} {one.finding.name}"
                lines.append(f"accepted by the comment at {clean(one.place)}: {rule}{reason}")
            else:
                lines.append(f"accepted by `allow`: {_named(one.finding)}{reason}")
    if by_baseline:
        first = ", ".join(_named(one.finding) for one in by_baseline[:_MOST_TOLD])
        more = len(by_baseline) - _MOST_TOLD
        lines.append(
            f"accepted by {clean(by_baseline[0].place)}: {first}"
            + (f" and {more} more" if more > 0 else "")
        )
    lines += [
        f"unused: # nanodoc: ignore[{clean(', '.join(one.codes))}] at {clean(one.file)}:{one.line} "
        "matched no finding in this run"
        for one in report.unused_ignores
    ]
    return lines


def _named(finding: Finding) -> str:
    where = finding.culprit.location
    at = where.place if where is not None else finding.culprit.parameter
    at = at or finding.culprit.module or ""
    return f"{finding.code} {finding.name}" + (f" ({clean(at)})" if at else "")


def _files(report: Report) -> list[str]:
    """Where comments are looked for: the user's own files that the run used, and those of its
    findings."""
    places = [finding.culprit.location for finding in report.findings]
    return list(dict.fromkeys((*report.sources, *(at.file for at in places if at is not None))))


def _in_words(
    finding: Finding,
    ignores: Mapping[str, Iterable[Ignore]],
    allow: Sequence[Mapping[str, str]],
) -> Accepted | None:
    """By what the user wrote of it: a comment, or a row of `allow`."""
    comment = _by_comment(finding, ignores)
    if comment is not None:
        return Accepted(finding=finding, by="comment", place=comment.place, reason=comment.reason)
    row = next((row for row in allow if _allows(row, finding)), None)
    if row is None:
        return None
    return Accepted(finding=finding, by="allow", place="", reason=row.get("reason", ""))


def _by_comment(finding: Finding, ignores: Mapping[str, Iterable[Ignore]]) -> Ignore | None:
    where = finding.culprit.location
    if where is None:
        return None
    return next(
        (
            ignore
            for ignore in ignores.get(where.file, ())
            if matches(finding, ignore.codes)
            and ignore.lines.start <= where.end_line
            and where.line < ignore.lines.stop
        ),
        None,
    )


def _allows(row: Mapping[str, str], finding: Finding) -> bool:
    culprit = finding.culprit
    file = culprit.location.file if culprit.location is not None else ""
    values = {"module": culprit.module or "", "parameter": culprit.parameter or ""}
    return (
        matches(finding, (row["rule"],))
        and ("file" not in row or any(fnmatchcase(name, row["file"]) for name in _names(file)))
        and all(key not in row or fnmatchcase(value, row[key]) for key, value in values.items())
    )


def _names(file: str) -> tuple[str, ...]:
    """A file's path, and its name alone."""
    return (Path(file).as_posix(), Path(file).name)


def ignores_of(file: str) -> list[Ignore]:
    """The comments in a source file that accept findings; empty where the file is no Python."""
    text = _source(file)
    if _COMMENT.search(text) is None:
        return []
    found: list[Ignore] = []
    comments: list[tuple[int, re.Match[str]]] = []
    begin = 1
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string)):
                comments.append((token.start[0], match))
            elif token.type in (tokenize.NEWLINE, tokenize.ENDMARKER):
                # comments above a statement, inside it and behind it stand for all of its lines
                statement = range(begin, token.start[0] + 1)
                found += [_ignore(file, line, match, statement) for line, match in comments]
                comments, begin = [], statement.stop
    except (tokenize.TokenError, SyntaxError):  # what was read so far counts
        pass
    return found


def _ignore(file: str, line: int, match: re.Match[str], statement: range) -> Ignore:
    codes = tuple(code.strip() for code in match["codes"].split(",") if code.strip())
    return Ignore(
        file=file, line=line, codes=codes, reason=match["reason"].strip(), lines=statement
    )


def _source(file: str) -> str:
    """A file's text; of a notebook's cell what the interpreter keeps of it."""
    kept = linecache.cache.get(file)
    try:
        path = Path(file)
        if path.is_file() and path.stat().st_size <= _LARGEST:
            with tokenize.open(path) as source:
                return source.read()
    except (OSError, SyntaxError, ValueError):
        return ""
    return "".join(kept[2]) if kept is not None and len(kept) == 4 else ""
