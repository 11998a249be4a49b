"""`nanodoc env`: what a training runs on, to paste into a bug report, and a list of checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nanodoc.cli.common import payload_on_stdout, write_payload
from nanodoc.config import Config
from nanodoc.errors import UsageError

_FORMATS = ("full", "json")


def env(
    output_format: Annotated[
        str, typer.Option("--output-format", help="full or json (default: full).")
    ] = "full",
    output: Annotated[
        Path | None, typer.Option("--output", help="Write it to this file instead of stdout.")
    ] = None,
) -> None:
    """Print the environment for a bug report.

    Also checks that torch works in it. Prints nothing secret.
    """
    if output_format not in _FORMATS:
        raise UsageError(f"--output-format {output_format!r} is not one of {', '.join(_FORMATS)}")
    with payload_on_stdout() as stdout:
        from nanodoc.environment.gather import gather
        from nanodoc.report.environment import render, render_json

        environment = gather()
        settings = Config(output=str(output) if output is not None else None)
        write_payload(
            lambda look: (
                render_json(environment)
                if output_format == "json"
                else render(environment, color=look.color)
            ),
            settings,
            stdout,
            form=output_format,
        )
    raise typer.Exit(0 if environment.healthy else 1)
