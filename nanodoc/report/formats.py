"""Every form of the report, by the name that `--output-format` has for it."""

from __future__ import annotations

from pathlib import Path

from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, render


def rendered(report: Report, form: str, look: Look, *, own: bool = True) -> str:
    """The report in that form. `own`: it was made here, and is not somebody else's."""
    if form == "html":
        from nanodoc.report.page.render import render_html

        history = report.artifacts.get("history")
        return render_html(report, own=own, history=Path(history) if history else None)
    if form == "json":
        from nanodoc.report.machine import render_json

        return render_json(report)
    if form == "github":
        from nanodoc.report.machine import render_github

        return render_github(report)
    if form == "sarif":
        from nanodoc.report.sarif import render_sarif

        return render_sarif(report)
    if form == "junit":
        from nanodoc.report.junit import render_junit

        return render_junit(report)
    if form == "markdown":
        from nanodoc.report.markdown import render_markdown

        return render_markdown(report)
    if form == "gitlab":
        from nanodoc.report.code_quality import render_code_quality

        return render_code_quality(report)
    return render(report, look, concise=form == "concise")
