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
from nanodoc.diagnosis.rule import Rule
from nanodoc.errors import UsageError
from nanodoc.rules.catalogue import RULES, find_rule

_MOST_BYTES = 10 * 2**20
_LONGEST_PATH = 4096
_ERROR_LIKE = re.compile(r"\s|(?:Error|Exception|Warning|Interrupt|StopIteration)\b")
_HELP = (
    "Rules by code or name, such as ND301 or infinite-gradient; an error message; a file with a "
    "traceback or log; or - for stdin."
)
_NOTHING = (
    "there is nothing to explain; give a rule (nanodoc explain ND301), an error message in quotes "
    "(nanodoc explain 'RuntimeError: …'), a file, or a pipe (python train.py 2>&1 | nanodoc "
    "explain -); nanodoc explain --help tells more"
)
_FAMILIES = {
    "1": "what came in",
    "2": "values outside a function's domain or range",
    "3": "gradients",
    "4": "mixed precision",
    "5": "the graph",
    "6": "learning",
    "7": "the machine",
    "8": "distributed runs",
    "9": "nanodoc's own",
}
# What text has none of; tabs, line ends, backspaces of progress bars and escapes of colours are
# left out.
_NO_TEXT = re.compile(rb"[\x00-\x07\x0e-\x1a\x1c-\x1f]")


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(context.get_help())
        raise typer.Exit


def explain(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="CODE|ERROR|FILE|-", help=_HELP)
    ] = None,
    output_format: Annotated[
        str, typer.Option("--output-format", help="full or json (of errors).")
    ] = "full",
    _help: Annotated[
        bool, typer.Option("-h", hidden=True, is_eager=True, callback=_show_help)
    ] = False,
) -> None:
    """Explain a rule, an error message, or a log.

    Says what it means, its likeliest causes, and the fix.

    The exit code is 0 whether or not an error is in the knowledge base ("known" in the JSON output
    tells), and 2 if there is nothing to explain: no such rule or file, or no text.
    """
    if output_format not in ("full", "json"):
        raise UsageError(f"--output-format {output_format!r} is not full or json")
    if not words and sys.stdin.isatty():
        raise UsageError(_NOTHING)
    word = " ".join(words or ["-"])
    asked = _rules(word)
    if asked:
        _print_rules(asked, output_format)
        return
    text, note = _text(word)
    if not text.strip():
        raise UsageError(
            _NOTHING if not words else "there is nothing to explain: the text is empty"
        )
    _print_answer(text, note, output_format)


def _rules(word: str) -> list[Rule]:
    """The rules that a word names in any of the ways people write them: ND301, nd-301, "infinite
    gradient", INFINITE_GRADIENT; or several codes and names. Empty where it names none, or anything
    else besides."""
    known = {
        re.sub(r"\W|_", "", key.lower()): rule for rule in RULES for key in (rule.code, rule.name)
    }
    if len(word) > _LONGEST_PATH:
        return []
    for parts in ([word], re.split(r"[\s,;]+", word.strip())):
        named = [known.get(re.sub(r"\W|_", "", part.lower())) for part in parts]
        found = [rule for rule in named if rule is not None]
        if found and len(found) == len(named):
            return found
    return []


def _print_rules(asked: list[Rule], output_format: str) -> None:
    if output_format == "json":
        told = [
            {
                "code": rule.code,
                "name": rule.name,
                "severity": rule.severity,
                "summary": rule.summary,
                "doc": rule.page,
            }
            for rule in asked
        ]
        typer.echo(json.dumps(told if len(told) > 1 else told[0], indent=2))
        return
    texts = [
        f"{rule.code} {rule.name} ({rule.severity}): {rule.summary}\n\n{rule.page}"
        for rule in asked
    ]
    typer.echo("\n".join(texts), nl=False)


def _check_family(word: str) -> None:
    """Raises `UsageError` that lists a family's rules, or the families, for a code that is only
    half of one or of no family."""
    match = re.fullmatch(r"(?i)nd[- _]?(\d{0,3})(?:x{1,2})?", word.strip())
    if not match:
        return
    digits = match[1]
    of_family = [
        f"{rule.code} {rule.name}"
        for rule in RULES
        if len(digits) < 3 and digits and rule.code.startswith(f"ND{digits}")
    ]
    if len(digits) == 1 and of_family:
        raise UsageError(
            f"ND{digits}: {_FAMILIES.get(digits, 'a family')}; its rules are {', '.join(of_family)}"
        )
    if not digits or (
        len(digits) == 3 and not any(rule.code.startswith(f"ND{digits[:2]}") for rule in RULES)
    ):
        families = ", ".join(f"ND{digit} {about}" for digit, about in _FAMILIES.items())
        raise UsageError(
            f"no rule {word!r}; the families are {families} (nanodoc rules lists them all)"
        )


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
    """The text to explain, and a note where only its end was read. Raises `UsageError` for what is
    neither rule, file nor error."""
    if word == "-":
        return _read(sys.stdin.buffer, "the input")
    path = _file(word)
    if path is not None and path.suffix == ".py":
        raise UsageError(f"{word} is a script, not an error; to examine it: nanodoc run {word}")
    if path is not None:
        try:
            with path.open("rb") as file:
                return _read(file, repr(word))
        except OSError as error:
            raise UsageError(f"cannot read {word!r}: {error.strerror}") from None
    if not word.strip() or _ERROR_LIKE.search(word) or _is_known(word):
        return word, ""
    if "/" in word or "\\" in word or re.search(r"\.\w{1,5}$", word):
        raise UsageError(f"no such file: {word!r}")
    _check_family(word)
    find_rule(word)  # raises, and names the nearest rule
    return word, ""


def _is_known(word: str) -> bool:
    """A word that is a message of its own, such as Killed."""
    if re.fullmatch(r"(?i)nd[-_]?\d*x*", word):
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


def _read(stream: BinaryIO, name: str) -> tuple[str, str]:
    """The last 10 MiB of a stream as text. Raises `UsageError` for what is none."""
    kept, size = b"", 0
    while chunk := stream.read(2**20):
        size += len(chunk)
        kept = (kept + chunk)[-_MOST_BYTES:]
    note = f"only the last 10 MiB of {size / 2**20:.0f} MiB were read" if size > _MOST_BYTES else ""
    # PowerShell's > writes UTF-16
    utf16 = kept.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not utf16 and len(_NO_TEXT.findall(kept[:65536])) > 0.05 * len(kept[:65536]):
        raise UsageError(f"{name} is not text; give the error message, a log or a traceback")
    return kept.decode("utf-16" if utf16 else "utf-8", errors="replace").removeprefix(
        "\ufeff"
    ), note
