"""The environment as a block to paste into a bug report, or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from nanodoc.environment.model import FAILED, NOTE, OK, Check, Environment
from nanodoc.report.terminal import printed
from nanodoc.strict_json import written
from nanodoc.text import clean

_MARKS = {OK: ("✓", "green"), NOTE: ("·", "bold yellow"), FAILED: ("✗", "bold red")}
_WIDTH, _LABEL = 120, 14


def render_json(environment: Environment) -> str:
    """Schema 1 of this command's own."""
    return written(environment.as_dict()) + "\n"


def render(environment: Environment, *, color: bool = False) -> str:
    """Facts and checks between Markdown fences, so that a web form shows them as they are; then the
    verdict."""
    out = Text("```text\n")
    for label, value in _rows(environment):
        indent = " " * (_LABEL + 1)
        out.append(
            textwrap.fill(
                f"{label:<{_LABEL}} {_safe(value)}",
                _WIDTH,
                subsequent_indent=indent,
                break_on_hyphens=False,
            )
            + "\n"
        )
    out.append("\n")
    for check in environment.checks:
        out.append_text(_check(check))
    out.append("```\n")
    failed = [check.name for check in environment.checks if check.state == FAILED]
    notes = sum(check.state == NOTE for check in environment.checks)
    style = "bold red" if failed else "bold green"
    said = (
        f"failed: {', '.join(failed)}" if failed else f"{len(environment.checks) - notes} checks OK"
    )
    out.append(f"verdict: {'failed' if failed else 'healthy'}", style)
    out.append(
        f" ({said}{f', {notes} note' + ('' if notes == 1 else 's') if notes else ''}); the block "
        "can be pasted into a bug report\n"
    )
    return printed(out, _WIDTH, color)


def _rows(environment: Environment) -> Iterator[tuple[str, str]]:
    yield "nanodoc", environment.nanodoc
    yield from environment.facts.items()
    for gpu in environment.gpus:
        fits = {True: "", False: ", not supported by this torch build", None: ", support unknown"}[
            gpu.supported
        ]
        yield (
            f"GPU {gpu.index}",
            f"{gpu.name}, {gpu.memory / 2**30:.1f} GiB, {gpu.capability}{fits}",
        )
    yield (
        "packages",
        ", ".join(f"{name} {version}" for name, version in environment.packages.items())
        or "no related packages found",
    )
    yield (
        "variables",
        " ".join(f"{name}={_quoted(value)}" for name, value in environment.variables.items())
        or "none that matter",
    )


def _quoted(value: str) -> str:
    return f'"{value}"' if not value or " " in value else value


def _check(check: Check) -> Text:
    mark, style = _MARKS[check.state]
    out = Text("  ").append(mark, style).append(f" {check.name:<{_LABEL}} {_safe(check.text)}\n")
    if check.help is not None:
        out.append(f"      = help: {_safe(check.help)}\n")
    return out


def _safe(text: str) -> str:
    """Nothing that would end the fence."""
    return clean(text).replace("```", "'''")
