"""`nanodoc check-grad-graph FILE.py:NAME`: which parameters get a gradient, and where the path of
the others ends."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from nanodoc.cli.common import examined, exit_code, given, payload_on_stdout, write_payload
from nanodoc.cli.run import (
    Amp,
    ConfigFile,
    Device,
    FailOn,
    Ignore,
    InProcess,
    Output,
    Seed,
    Select,
    Timeout,
)
from nanodoc.config import load_config
from nanodoc.rules.catalogue import check_codes
from nanodoc.supervise.job import Job


class GraphFormat(StrEnum):
    """What `--format` takes."""

    TREE = "tree"
    JSON = "json"
    DOT = "dot"


def check_grad_graph(
    entrypoint: Annotated[
        str, typer.Argument(metavar="FILE.py:NAME", help="The function that returns what to train.")
    ],
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            min=1,
            help="Steps to look at; cuts on some steps only show with more than one.",
        ),
    ] = 1,
    format_: Annotated[
        GraphFormat,
        typer.Option("--format", help="How to print it; dot is Graphviz's text format."),
    ] = GraphFormat.TREE,
    module: Annotated[
        str | None,
        typer.Option("--module", metavar="PREFIX", help="Only the parameters below this module."),
    ] = None,
    device: Device = None,
    seed: Seed = None,
    config: ConfigFile = None,
    amp: Amp = None,
    output: Output = None,
    fail_on: FailOn = None,
    select: Select = None,
    ignore: Ignore = None,
    timeout: Timeout = None,
    in_process: InProcess = False,
) -> None:
    """Run forward and backward, never an optimizer, and print which parameters get a gradient."""
    flags = given(
        steps=steps,
        device=device,
        seed=seed,
        amp=amp,
        output=output,
        fail_on=fail_on,
        select=select,
        ignore=ignore,
        timeout=timeout,
        in_process=in_process or None,
    )
    settings = load_config(config, flags)
    check_codes(settings.select + settings.ignore)
    with payload_on_stdout() as stdout:
        from nanodoc.report.dot import render_dot
        from nanodoc.report.grad_tree import render_tree
        from nanodoc.report.machine import render_json

        report = examined(
            Job(
                command="check-grad-graph",
                target=entrypoint,
                config=settings,
                options={"module": module},
            )
        )
        if format_ is GraphFormat.TREE:
            write_payload(lambda color: render_tree(report, color=color), settings, stdout)
        else:
            write_payload(
                lambda color: (
                    render_json(report) if format_ is GraphFormat.JSON else render_dot(report)
                ),
                settings,
                stdout,
            )
        raise typer.Exit(exit_code(report, settings.fail_on))
