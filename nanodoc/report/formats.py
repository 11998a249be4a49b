"""Every form of the report, by the name that `--output-format` has for it."""

from __future__ import annotations

from pathlib import Path

from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, render


def rendered(report: Report, form: str, look: Look, *, beside: Path | None = None) -> str:
    """The report in that form. `beside`: the folder of a report that was read, and may be somebody
    else's; None of one that was made here."""
    if form == "html":
        from nanodoc.report.page.render import is_below, render_html

        told = report.artifacts.get("history")
        history = Path(told) if told else None
        if history is not None and beside is not None and not is_below(history, beside):
            history = None  # a stranger's report may name any file
        return render_html(report, own=beside is None, history=history)
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
