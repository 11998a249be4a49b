"""`nanodoc rules`: the catalogue as a table or JSON."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from nanodoc.errors import UsageError
from nanodoc.rules.catalogue import RULES


def rules(
    output_format: Annotated[str, typer.Option("--output-format", help="table or json")] = "table",
) -> None:
    """List all rules: code, name, severity, summary."""
    if output_format == "json":
        table = [
            {"code": r.code, "name": r.name, "severity": r.severity, "summary": r.summary}
            for r in RULES
        ]
        typer.echo(json.dumps(table, indent=2))
    elif output_format == "table":
        wide = max(len(rule.name) for rule in RULES)
        for rule in RULES:
            typer.echo(f"{rule.code}  {rule.name:<{wide}}  {rule.severity:<8}  {rule.summary}")
    else:
        raise UsageError(f"--output-format {output_format!r} is not table or json")
