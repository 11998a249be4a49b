"""`nanodoc check-grad-graph FILE.py:NAME`: which parameters get a gradient, and where the path of
the others ends."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nanodoc.cli.common import examined, exit_code, payload_on_stdout, write_payload
from nanodoc.cli.options import ConfigFile, Entrypoint, configured, settings_of
from nanodoc.pipeline.accepted import read_baselines, with_accepted
from nanodoc.recipe.target import check_recipe
from nanodoc.supervise.job import Job


class GraphFormat(StrEnum):
    """What `--output-format` takes."""

    TREE = "tree"
    JSON = "json"
    DOT = "dot"


Steps = Annotated[
    int,
    typer.Option(
        "--steps",
        min=1,
        metavar="N",
        help="Steps to look at; a cut that only some steps have needs more than one.",
        rich_help_panel="What to run",
    ),
]
Format = Annotated[
    GraphFormat | None,
    typer.Option(
        "--output-format",
        metavar="FORMAT",
        help="tree, json or dot, Graphviz's text format (default: by the suffix of --output, else "
        "tree).",
        show_default=False,
        rich_help_panel="Output",
    ),
]
Module = Annotated[
    str | None,
    typer.Option(
        "--module",
        metavar="PREFIX",
        help="Only the parameters below this module.",
        rich_help_panel="What to watch",
    ),
]
_BY_SUFFIX = {
    ".json": GraphFormat.JSON,
    ".dot": GraphFormat.DOT,
    ".gv": GraphFormat.DOT,
}


@configured("check-grad-graph")
def check_grad_graph(
    entrypoint: Entrypoint,
    steps: Steps = 1,
    format_: Format = None,
    module: Module = None,
    config: ConfigFile = None,
    **flags: Any,
) -> None:
    """Show which parameters get a gradient, and why not.

    Runs forward and backward, and never an optimizer.
    """
    check_recipe(entrypoint, "check-grad-graph")
    settings = settings_of({**flags, "steps": steps}, config)
    suffix = Path(settings.output or "").suffix.lower()
    format_ = format_ or _BY_SUFFIX.get(suffix, GraphFormat.TREE)
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
