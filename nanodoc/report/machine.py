"""The report for programs: the public JSON, and GitHub workflow annotations."""

from __future__ import annotations

import re

from nanodoc.diagnosis.finding import Finding
from nanodoc.report.public import public_form
from nanodoc.report.report import Report
from nanodoc.report.secrets import without_secrets
from nanodoc.strict_json import written
from nanodoc.text import clean

_COMMAND = re.compile(r"::(?=[a-z][a-z-]*(?: [^:\n]*)?::)")
_LEVELS = {"critical": "error", "warning": "warning", "info": "notice"}


def render_json(report: Report) -> str:
    """Schema version 1, strict JSON: NaN and inf are the strings "nan", "inf" and "-inf"."""
    return written(public_form(without_secrets(report))) + "\n"


def render_github(report: Report) -> str:
    """One workflow command per finding, shown by GitHub beside the line it names."""
    lines = [_annotation(finding) for finding in without_secrets(report).findings]
    lines.append(
        f"nanodoc: {report.verdict} ({_many(len(report.findings), 'finding')}"
        + (f", {len(report.accepted)} accepted" if report.accepted else "")
        + f" in {_many(report.vitals.steps, 'step')})"
    )
    return "\n".join(lines) + "\n"


def _many(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _annotation(finding: Finding) -> str:
    where = finding.culprit.location
    properties = [f"title={_property(f'{finding.code} {finding.name}')}"]
    if where is not None:
        properties = [
            f"file={_property(where.file)}",
            f"line={where.line}",
            f"endLine={where.end_line}",
            f"col={where.column}",
            f"endColumn={where.end_column}",
            *properties,
        ]
    message = f"{finding.title}. {finding.explanation}"
    for fix in finding.fixes[:1]:
        message += f"\nhelp: {fix.title}" + (f": {fix.patch}" if fix.patch else "")
    return f"::{_LEVELS[finding.severity]} {','.join(properties)}::{_data(message)}"


def _data(text: str) -> str:
    """Escaped as GitHub's toolkit does for a command's message."""
    safe = "\n".join(clean(line) for line in text.splitlines())
    safe = _COMMAND.sub(": :", safe)  # a command begins a line, and this is one line already
    return safe.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
