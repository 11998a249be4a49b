"""Every form of the report, by the name that `--output-format` has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from nanodoc.diagnosis.rule import Rule
from nanodoc.report.report import Report
from nanodoc.report.terminal import Look, render
from nanodoc.strict_json import in_ascii

JSON = ("json", "sarif", "gitlab")
MARKUP = ("html", "junit")
_RENDERERS = {
    "json": ("machine", "render_json"),
    "github": ("machine", "render_github"),
    "junit": ("junit", "render_junit"),
    "markdown": ("markdown", "render_markdown"),
    "gitlab": ("code_quality", "render_code_quality"),
}
"""(module of this room, its function): imported when the form is asked for."""


def rendered(
    report: Report,
    form: str,
    look: Look,
    *,
    beside: Path | None = None,
    rules: Iterable[Rule] = (),
) -> str:
    """The report in that form. `beside`: the folder of a report that was read, and may be somebody
    else's; None of one that was made here. `rules` is the catalogue, for the forms that hold its
    texts."""
    if report.snapshot is not None and form == "full":
        from nanodoc.report.snapshot import render_snapshot

        return render_snapshot(report, look)
    if form in ("full", "concise"):
        return render(report, look, concise=form == "concise")
    if form == "html":
        return _page(report, beside)
    if form == "sarif":
        from nanodoc.report.sarif import render_sarif

        return render_sarif(report, rules)
    module, function = _RENDERERS[form]
    renderer: Callable[[Report], Any] = getattr(import_module(f"nanodoc.report.{module}"), function)
    return str(renderer(report))


def _page(report: Report, beside: Path | None) -> str:
    from nanodoc.report.page.render import is_below, render_html

    told = report.artifacts.get("history")
    history = Path(told) if told else None
    if history is not None and beside is not None and not is_below(history, beside):
        history = None  # a stranger's report may name any file
    return render_html(report, own=beside is None, history=history)


def encodable(text: str, form: str, encoding: str) -> str:
    """`text` in what an encoding has letters for, escaped as its form can read it."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        if form in JSON:
            return in_ascii(text)
        if form in MARKUP:
            return text.encode(encoding, "xmlcharrefreplace").decode(encoding)
        from nanodoc.report.layout import in_few_letters

        return in_few_letters(text).encode(encoding, "backslashreplace").decode(encoding)
    return text
