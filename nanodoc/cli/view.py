"""`nanodoc view`: shows a JSON report again, as a page or in the terminal."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanodoc.cli.common import payload_on_stdout, rules_for, write_all
from nanodoc.cli.options import configured, settings_of
from nanodoc.cli.outputs import check_output
from nanodoc.errors import UsageError

if TYPE_CHECKING:
    from nanodoc.report.report import Report
    from nanodoc.report.terminal import Look


@configured("view")
def view(
    report: Annotated[
        Path,
        typer.Argument(
            metavar="REPORT.json|SNAPSHOT.pt", help="A JSON report, or the snapshot of a step."
        ),
    ],
    **flags: Any,
) -> None:
    """Show a JSON report, or what a snapshot holds.

    As an HTML page in the same folder, or in the format that --output-format names.
    """
    settings = settings_of(flags)
    with payload_on_stdout() as stdout:
        found = _read(report)
        asked = flags.get("output_format") is not None or settings.also
        if not asked and settings.output is None:
            page = str(report.with_suffix(".html"))
            settings = replace(settings, output_format="html", output=page)
            check_output(settings)
        forms = (settings.output_format, *settings.also)
        if found.snapshot is not None and not set(forms) <= set(_OF_SNAPSHOTS):
            raise UsageError(
                f"a snapshot has no findings; its formats are {', '.join(_OF_SNAPSHOTS)}; for a "
                f"report run nanodoc replay {report}"
            )
        files = [file for file in (settings.output, *settings.also.values()) if file is not None]
        if any(Path(file).resolve() == report.resolve() for file in files):
            raise UsageError(f"--output would overwrite {report}; choose a different file")
        write_all(partial(_shown, found, report.parent), settings, stdout)
        for file in files:
            print(f"wrote {file}", file=stdout)


_OF_SNAPSHOTS = ("full", "html", "json")


def _read(path: Path) -> Report:
    if path.suffix == ".json" or not _is_snapshot(path):
        from nanodoc.report.reader import read_report

        return read_report(path)
    from nanodoc.replay.held import snapshot_report

    return snapshot_report(path)


def _is_snapshot(path: Path) -> bool:
    """By its name, or by the first bytes of what torch.save writes."""
    if path.suffix in (".pt", ".pth"):
        return True
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def _shown(report: Report, beside: Path, form: str, look: Look) -> str:
    from nanodoc.report.formats import rendered

    return rendered(report, form, look, beside=beside, rules=rules_for(form))
