"""`nanodoc view`: a JSON report shown again, as a page or in the terminal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanodoc.cli.common import payload_on_stdout, write_payload
from nanodoc.cli.options import configured, settings_of
from nanodoc.config import check_output

if TYPE_CHECKING:
    from nanodoc.report.report import Report
    from nanodoc.report.terminal import Look


@configured("view")
def view(
    report: Annotated[Path, typer.Argument(metavar="REPORT.json", help="What a run wrote.")],
    **flags: Any,
) -> None:
    """Show a JSON report again: as the page beside it, or in another form."""
    settings = settings_of(flags)
    with payload_on_stdout() as stdout:
        from nanodoc.report.reader import read_report

        found = read_report(report)
        if flags.get("output_format") is None and settings.output is None:
            page = str(report.with_suffix(".html"))
            settings = replace(settings, output_format="html", output=page)
            check_output(settings)
        form = settings.output_format
        for further, file in settings.also.items():
            own = replace(settings, output_format=further, output=file, also={})
            write_payload(partial(_shown, found, further), own, stdout)
        write_payload(partial(_shown, found, form), settings, stdout)
        if settings.output is not None:
            stdout.write(f"wrote {settings.output}\n")


def _shown(report: Report, form: str, look: Look) -> str:
    from nanodoc.report.formats import rendered

    return rendered(report, form, look, own=False)
