"""The command line: one explicit list of commands; each lives in its own file. Nothing here imports torch."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nanodoc._version import __version__
from nanodoc.cli.demo import demo
from nanodoc.cli.explain import explain
from nanodoc.cli.replay import replay
from nanodoc.cli.rules import rules
from nanodoc.cli.run import run
from nanodoc.errors import NanodocError

app = typer.Typer(
    name="nanodoc",
    help="A doctor for PyTorch training runs: names the line, op and layer that made a run sick, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (run, replay, explain, rules, demo):
    app.command()(command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"nanodoc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """A doctor for PyTorch training runs: names the line, op and layer that made a run sick, and why."""


def main() -> None:
    """Entry point of the `nanodoc` command; turns nanodoc's errors into one line on stderr and their exit code."""
    try:
        app()
    except NanodocError as error:
        print(f"nanodoc: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("nanodoc: interrupted", file=sys.stderr)
        sys.exit(130)


__all__ = ["app", "main"]
