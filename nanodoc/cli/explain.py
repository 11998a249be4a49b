"""`nanodoc explain`: the catalogue's text for one rule, or what is known about a pasted error."""

from __future__ import annotations

import codecs
import json
import re
import sys
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from nanodoc.cli.common import in_color
from nanodoc.errors import UsageError
from nanodoc.rules.base import Rule
from nanodoc.rules.registry import RULES, find_rule
from nanodoc.thresholds import described

_MOST_BYTES = 10 * 2**20
_LONGEST_PATH = 4096
_ERROR_LIKE = re.compile(r"\s|(?:Error|Exception|Warning|Interrupt|StopIteration)\b")
_HELP = "A rule's code or name, such as ND301 or infinite-gradient; an error message; a file with a traceback or log; or - for stdin."


def explain(
    words: Annotated[list[str], typer.Argument(metavar="CODE|ERROR|FILE|-", help=_HELP)],
    output_format: Annotated[str, typer.Option("--output-format", help="full or json (of errors).")] = "full",
) -> None:
    """Explain a rule, or an error message: what it means, its likeliest causes, the fix."""
    if output_format not in ("full", "json"):
        raise UsageError(f"--output-format {output_format!r} is not full or json")
    word = " ".join(words)
    rule = _rule(word)
    if rule is not None:
        _print_rule(rule, output_format)
        return
    text, note = _text(word)
    if not text.strip():
        raise UsageError("there is nothing to explain: the text is empty")
    _print_answer(text, note, output_format)


def _rule(word: str) -> Rule | None:
    wanted = word.strip().lower()
    return next((rule for rule in RULES if wanted in (rule.code.lower(), rule.name)), None)


def _print_rule(rule: Rule, output_format: str) -> None:
    if output_format == "json":
        told = {"code": rule.code, "name": rule.name, "severity": rule.severity, "summary": rule.summary, "doc": rule.doc}
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"{rule.code} {rule.name} ({rule.severity}): {rule.summary}\n\n{rule.doc}{described(rule.code)}", nl=False)


def _print_answer(text: str, note: str, output_format: str) -> None:
    # the parser and its data are only read where an error is asked about
    from nanodoc.explain.answer import answer
    from nanodoc.report.explained import document, render

    found, codes = answer(text), frozenset(rule.code for rule in RULES)
    if output_format == "json":
        typer.echo(json.dumps(document(found, codes), indent=2))
    else:
        typer.echo(render(found, color=in_color(sys.stdout), rules=codes, note=note), nl=False)


def _text(word: str) -> tuple[str, str]:
    """The text to explain, and a note where only its end was read. Raises `UsageError` for what is neither rule, file nor error."""
    if word == "-":
        return _read(sys.stdin.buffer)
    path = _file(word)
    if path is not None:
        try:
            with path.open("rb") as file:
                return _read(file)
        except OSError as error:
            raise UsageError(f"cannot read {word!r}: {error.strerror}") from None
    if not word.strip() or _ERROR_LIKE.search(word) or _is_known(word):
        return word, ""
    if "/" in word or "\\" in word or re.search(r"\.\w{1,5}$", word):
        raise UsageError(f"no such file: {word!r}")
    find_rule(word)  # raises, and names the nearest rule
    return word, ""


def _is_known(word: str) -> bool:
    """A word that is a message of its own, such as Killed."""
    if re.fullmatch(r"(?i)nd\d*", word):
        return False
    from nanodoc.explain.knowledge import explained

    return explained(word) is not None


def _file(word: str) -> Path | None:
    if not word or len(word) > _LONGEST_PATH or "\n" in word or "\0" in word:
        return None
    try:
        path = Path(word)
        if path.is_dir():
            raise UsageError(f"{word!r} is a folder, not a file with an error")
        return path if path.exists() else None
    except OSError:  # longer than a name may be: no file, then
        return None


def _read(stream: BinaryIO) -> tuple[str, str]:
    """The last 10 MiB of a stream as text."""
    kept, size = b"", 0
    while chunk := stream.read(2**20):
        size += len(chunk)
        kept = (kept + chunk)[-_MOST_BYTES:]
    note = f"only the last 10 MiB of {size / 2**20:.0f} MiB were read" if size > _MOST_BYTES else ""
    # PowerShell's > writes UTF-16
    utf16 = kept.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return kept.decode("utf-16" if utf16 else "utf-8", errors="replace").removeprefix("\ufeff"), note
