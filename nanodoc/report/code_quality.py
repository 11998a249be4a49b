"""The report as GitLab's code quality JSON: an entry for each finding that has a line."""

from __future__ import annotations

from nanodoc.report.report import Report
from nanodoc.report.secrets import without_secrets
from nanodoc.strict_json import written
from nanodoc.text import clean

_SEVERITIES = {"critical": "critical", "warning": "major", "info": "info"}


def render_code_quality(report: Report) -> str:
    """A list; GitLab shows its entries beside the lines of a merge request."""
    rows = [
        {
            "check_name": f"nanodoc {finding.code} {finding.name}",
            "description": f"{clean(finding.title)}. {clean(finding.explanation)}",
            "fingerprint": finding.fingerprint,
            "severity": _SEVERITIES[finding.severity],
            "location": {
                "path": clean(finding.culprit.location.file).removeprefix("./"),
                "lines": {"begin": finding.culprit.location.line},
            },
        }
        for finding in without_secrets(report).findings
        if finding.culprit.location is not None
    ]
    return written(rows) + "\n"
