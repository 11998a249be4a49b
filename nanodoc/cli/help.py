"""How --help is laid out: examples first, then options under headings."""

from __future__ import annotations

import re
import shlex
from typing import Any

from typer.core import TyperCommand, TyperGroup

from nanodoc.config import PANELS
from nanodoc.errors import UsageError
from nanodoc.recipe.target import names_a_function

WIDEST = 100  # columns
_TYPES = {"str": "TEXT", "int": "N", "float": "N", "path": "FILE", "bool": ""}
_TYPE = re.compile(r"<(\w+)[^<>]*>")


class Command(TyperCommand):
    """A command whose options stand under the headings that they name."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Without braces around arguments."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the options by heading, then what has none."""
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{p: [] for p in PANELS}}
        for parameter in self.get_params(ctx):
            panel = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                panel = "Arguments"
            row = parameter.get_help_record(ctx)
            if row is not None:
                named = row[0].partition(" ")[0] if panel == "Arguments" else row[0]
                named = _TYPE.sub(lambda match: _TYPES.get(match[1], match[1].upper()), named)
                said = row[1].removesuffix("  [required]")
                panels.setdefault(panel or "Options", []).append((named.strip(), said))
        for name, rows in panels.items():
            if rows:
                with formatter.section(name):
                    formatter.write_dl(rows)


class Commands(TyperGroup):
    """The commands, and what to type instead of a word that is none."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`nanodoc help [COMMAND]` is `nanodoc [COMMAND] --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Raises `UsageError` where the first word is a file rather than a command."""
        word = args[0]
        file = word.rpartition(":")[0] if names_a_function(word) else word
        if self.get_command(ctx, word) is None and file.endswith((".py", ".ipynb", ".pt")):
            command = {"py": "run", "ipynb": "init", "pt": "replay"}[file.rpartition(".")[2]]
            raise UsageError(
                f"{word} is not a command; use: nanodoc {command} {shlex.join(args)[:200]}"
            )
        return super().resolve_command(ctx, args)
