"""The command line: one explicit list of commands; each lives in its own file. Nothing here imports
torch."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated

import typer

from nanodoc._version import __version__
from nanodoc.cli.check_grad_graph import check_grad_graph
from nanodoc.cli.demo import demo
from nanodoc.cli.env import env
from nanodoc.cli.explain import explain
from nanodoc.cli.help import WIDEST, Command, Commands
from nanodoc.cli.init import init
from nanodoc.cli.net import net
from nanodoc.cli.replay import replay
from nanodoc.cli.rules import rules
from nanodoc.cli.run import RunCommand, run
from nanodoc.cli.view import view
from nanodoc.errors import NanodocError
from nanodoc.text import clean

app = typer.Typer(
    name="nanodoc",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": WIDEST},
)
app.command(cls=RunCommand)(run)
for command in (check_grad_graph, replay, view, explain, init, rules, demo, env, net):
    app.command(cls=Command)(command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"nanodoc {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """A doctor for PyTorch training runs: names the line, op and layer to blame, and why.

    \b
    nanodoc run train.py --lr 3e-4     watch a training script and diagnose it
    nanodoc explain error.log          explain an error that you already have
    nanodoc demo                       try it on small broken trainings
    """


def main() -> None:
    """Entry point of the `nanodoc` command; every error is one line on stderr and one of the public
    exit codes."""
    try:
        code = app(prog_name="nanodoc", standalone_mode=False)
    except NanodocError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted", 130)
    except Exception as error:
        # a usage error of the command-line library, which typer may bundle
        if hasattr(error, "format_message"):
            message = error.format_message().strip()
            if type(error).__name__ == "NoArgsIsHelpError":
                print(message)
                sys.exit(2)
            if message:  # empty where the help was all there was to say
                _end(message, 2)
            sys.exit(2)
        if os.environ.get("NANODOC_DEBUG"):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        _end(
            f"internal error: {type(error).__name__}: {said} ({place.name}, line {place.lineno}); "
            "NANODOC_DEBUG=1 shows the traceback",
            3,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _end(message: str, code: int) -> None:
    print(f"nanodoc: {clean(message)}", file=sys.stderr)
    sys.exit(code)


__all__ = ["app", "main"]
