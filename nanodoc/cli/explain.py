"""`nanodoc explain CODE`: the catalogue's text for one rule."""

from __future__ import annotations

from typing import Annotated

import typer

from nanodoc.rules.registry import find_rule
from nanodoc.thresholds import described


def explain(code: Annotated[str, typer.Argument(help="A rule's code or name, such as ND301 or infinite-gradient.")]) -> None:
    """Explain a rule: what it checks, why it matters, an example, the fix."""
    rule = find_rule(code)
    typer.echo(f"{rule.code} {rule.name} ({rule.severity}): {rule.summary}\n\n{rule.doc}{described(rule.code)}", nl=False)
