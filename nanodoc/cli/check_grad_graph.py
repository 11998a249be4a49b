"""`nanodoc check-grad-graph FILE.py:NAME`: which parameters get a gradient, and where the path of
the others ends."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from nanodoc.cli.common import examined, exit_code, payload_on_stdout, write_payload
from nanodoc.cli.options import ConfigFile, Entrypoint, configured, settings_of
from nanodoc.pipeline.accepted import read_baselines, with_accepted
from nanodoc.supervise.job import Job


class GraphFormat(StrEnum):
    """What `--format` takes."""

    TREE = "tree"
    JSON = "json"
    DOT = "dot"


@configured("check-grad-graph")
def check_grad_graph(
    entrypoint: Entrypoint,
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
    config: ConfigFile = None,
    **flags: Any,
) -> None:
    """Run forward and backward, never an optimizer, and print which parameters get a gradient."""
    settings = settings_of({**flags, "steps": steps}, config)
    baselines = read_baselines(settings)
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
        report = with_accepted(report, settings, baselines)
        if format_ is GraphFormat.TREE:
            write_payload(lambda look: render_tree(report, look), settings, stdout)
        else:
            write_payload(
                lambda look: (
                    render_json(report) if format_ is GraphFormat.JSON else render_dot(report)
                ),
                settings,
                stdout,
                form="json" if format_ is GraphFormat.JSON else "full",
            )
        raise typer.Exit(exit_code(report, settings.fail_on))
