"""`nanodoc view`: a JSON report shown again, as a page or in the terminal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanodoc.cli.common import payload_on_stdout, write_all
from nanodoc.cli.options import configured, settings_of
from nanodoc.config import check_output
from nanodoc.errors import UsageError

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
        asked = flags.get("output_format") is not None or settings.also
        if not asked and settings.output is None:
            page = str(report.with_suffix(".html"))
            settings = replace(settings, output_format="html", output=page)
            check_output(settings)
        files = [file for file in (settings.output, *settings.also.values()) if file is not None]
        if any(Path(file).resolve() == report.resolve() for file in files):
            raise UsageError(f"{report} is what is to be shown; choose another --output")
        write_all(partial(_shown, found, report.parent), settings, stdout)
        for file in files:
            print(f"wrote {file}", file=stdout)


def _shown(report: Report, beside: Path, form: str, look: Look) -> str:
    from nanodoc.report.formats import rendered

    return rendered(report, form, look, beside=beside)
