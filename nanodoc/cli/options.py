"""The options of the configuration as flags of the commands, as configs/reference.yaml, and as the
table in the documentation."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from nanodoc.cli.outputs import check_output, form_of, listed, outputs_of
from nanodoc.config import OPTIONS, PANELS, Config, load_config
from nanodoc.errors import UsageError
from nanodoc.options import KINDS, Option
from nanodoc.rules.catalogue import check_codes, selected

Command = TypeVar("Command", bound=Callable[..., None])

Entrypoint = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:NAME", help="A recipe: the function that returns what to train."
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML file with any of these options, and `recipe:` for build(config).",
        rich_help_panel=PANELS[0],
    ),
]


def configured(name: str) -> Callable[[Command], Command]:
    """Gives a command, which takes them as `**flags`, every option of the configuration that is
    declared for it as a flag. A parameter of the command's own goes before one of that name."""

    def with_flags(command: Command) -> Command:
        own = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        taken = {parameter.name for parameter in own}
        flags = [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                # what the user did not give is left to the configuration
                default=0 if option.counted else None,
                annotation=_annotation(option),
            )
            for option in OPTIONS.values()
            if name in option.commands and option.name not in taken
        ]
        flags.sort(key=lambda flag: PANELS.index(OPTIONS[flag.name].panel))
        # what typer reads; the function itself stays as it is
        command.__dict__["__signature__"] = inspect.Signature([*own, *flags])
        return command

    return with_flags


def _annotation(option: Option) -> Any:
    names = [option.flag, option.short] if option.short else [option.flag]
    shown: dict[str, Any] = {"help": help_of(option), "show_default": False}
    shown["rich_help_panel"] = option.panel
    if option.counted:
        return Annotated[int, typer.Option(*names, count=True, **shown)]
    if option.kind is not bool:
        shown["metavar"] = option.metavar or KINDS[option.kind].metavar
    taken: Any = Path if option.path else KINDS[option.kind].flag
    if option.repeated:
        taken = list[str]
    return Annotated[taken | None, typer.Option(*names, **shown)]


def settings_of(flags: Mapping[str, Any], file: Path | None = None) -> Config:
    """The configuration of a command from its flags; those that are None or an empty list the user
    did not give. Raises `UsageError`."""
    given = given_of(flags)
    if "output" in given:
        told = given.pop("output")
        given |= outputs_of(told)
    settings = load_config(file, given)
    if "output_format" not in given and ("output" in given or settings.output_format == "full"):
        settings = replace(settings, output_format=form_of(settings))
    check_codes(settings.select + settings.ignore)
    check_codes(tuple(row["rule"] for row in settings.allow))
    if not selected(settings.select, settings.ignore):
        raise UsageError("--select and --ignore leave no rule, so nothing could be found")
    check_output(settings)
    return settings


def given_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that the user gave: the others are None, an empty list, or counted to 0."""
    return {
        name: value
        for name, value in flags.items()
        if value is not None
        and value != []
        and not (name in OPTIONS and OPTIONS[name].counted and value == 0)
    }


def help_of(option: Option) -> str:
    """What an option does, what it can be and what it is by default, as a sentence."""
    default = default_of(option)
    return f"{_what(option)} (default: {default})." if default else f"{_what(option)}."


def default_of(option: Option) -> str:
    """The default in words; "" where it goes without saying."""
    if option.shown_default or option.default in (None, False, (), {}):
        return option.shown_default
    return "yes" if option.default is True else _as_yaml(option)


def _what(option: Option) -> str:
    if not option.choices:
        return option.help
    return f"{option.help}: {listed(option.choices, 'or')}"


def _as_yaml(option: Option) -> str:
    """The default as YAML and the command line take it."""
    value = option.default
    if isinstance(value, float):
        return f"{value:g}s"
    return value if isinstance(value, str) else json.dumps(value)


def reference() -> str:
    """The text of configs/reference.yaml: every option with its default."""
    lines = [
        "# Every option of `nanodoc run`, with its default; written by scripts/reference. The same "
        "keys work in",
        "# pyproject.toml under [tool.nanodoc] and, with dashes, as flags.",
        "# Later wins: defaults < pyproject.toml < this file < flags.",
        "",
    ]
    for option in OPTIONS.values():
        null = option.shown_default if option.default is None else ""
        said = f"{_what(option)}; null: {null}" if null else _what(option)
        lines.append(f"{f'{option.key}: {_as_yaml(option)}':<24} # {said}")
    return "\n".join(lines) + "\n"


def table() -> str:
    """Markdown's table of the options: flag, key, type with bounds, default, commands, help."""
    rows = [("Flag", "YAML key", "Type", "Default", "Commands", "What it does"), ("---",) * 6]
    for option in OPTIONS.values():
        rows.append(
            (
                _flags(option) if option.commands else "—",
                f"`{option.key}`",
                _type(option),
                default_of(option) or ("no" if option.default is False else "—"),
                ", ".join(option.commands) or "configuration only",
                option.help,
            )
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _flags(option: Option) -> str:
    return f"`{option.flag}`" + (f", `{option.short}`" if option.short else "")


def _type(option: Option) -> str:
    if option.choices:
        return listed(option.choices, "or")
    words = "path" if option.path else KINDS[option.kind].words
    return f"{words} ≥ {option.least}" if option.kind is int else words
