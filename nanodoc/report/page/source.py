"""Lines of the user's source for the page: highlighted, with the blamed columns marked and some
lines around them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Literal, Name, Token

from nanodoc.facts.source import SourceSpan
from nanodoc.report.secrets import hidden
from nanodoc.text import clean

_BEFORE, _BEHIND = 8, 3  # lines
_LONGEST = 2 * 2**20  # bytes of a file that is read
_WIDEST = 400  # columns of a line
_KINDS: tuple[tuple[Any, str], ...] = (
    (Comment, "c"),
    (Keyword, "k"),
    (Literal.String, "s"),
    (Literal.Number, "n"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "f"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `blamed`: it is of the statement."""

    number: int
    markup: Markup
    blamed: bool


def lines_of(where: SourceSpan, *, files: bool) -> list[Line]:
    """The statement with some lines around it. `files`: the file may be read; where it is not, or
    has changed since, the statement alone."""
    own = [" " * where.indent + line for line in where.code.split("\n")]
    first, lines = where.line, own
    if files and (text := _text_of(where.file)) is not None:
        whole = text.removesuffix("\n").split("\n")
        found = whole[where.line - 1 : where.line - 1 + len(own)]
        if [line.strip() for line in found] == [line.strip() for line in own]:
            first = max(1, where.line - _BEFORE)
            lines = whole[first - 1 : where.line - 1 + len(own) + _BEHIND]
    lines = [clean(hidden(line)) for line in lines]  # the report's own text is without secrets
    last = where.line + len(own) - 1
    shown = []
    for number, tokens in enumerate(_tokens("\n".join(lines)), first):
        if number >= first + len(lines):
            break
        blamed = where.line <= number <= last
        marks = _columns(where, number, lines[number - first]) if blamed else None
        shown.append(Line(number, _markup(tokens, marks), blamed))
    return shown


def _text_of(name: str) -> str | None:
    path = Path(name)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _LONGEST:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _columns(where: SourceSpan, number: int, line: str) -> tuple[int, int]:
    """The blamed columns of a line, from 0, the end exclusive."""
    first = where.column - 1 if number == where.line else len(line) - len(line.lstrip())
    return first, where.end_column - 1 if number == where.end_line else len(line)


def _tokens(text: str) -> Iterator[list[tuple[str, str]]]:
    """(class, text) of each token, line by line."""
    line: list[tuple[str, str]] = []
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        name = next((name for group, name in _KINDS if kind in group), "")
        for number, piece in enumerate(value.split("\n")):
            if number:
                yield line
                line = []
            if piece:
                line.append((name if kind is not Token.Text else "", piece))
    yield line


def _markup(tokens: list[tuple[str, str]], marks: tuple[int, int] | None) -> Markup:
    out, column = [], 0
    for name, text in tokens:
        for begin, end, marked in _pieces(column, column + len(text), marks):
            if begin >= _WIDEST:
                continue
            piece = escape(text[begin - column : min(end, _WIDEST) - column])
            if name:
                piece = Markup('<span class="{}">{}</span>').format(name, piece)
            out.append(Markup("<mark>{}</mark>").format(piece) if marked else piece)
        column += len(text)
    if column > _WIDEST:
        out.append(Markup("…"))
    return Markup("").join(out)


def _pieces(begin: int, end: int, marks: tuple[int, int] | None) -> Iterator[tuple[int, int, bool]]:
    """The parts of a token before, in and behind the marked columns."""
    first, last = marks if marks is not None else (end, end)
    cuts = sorted({begin, end, *(cut for cut in (first, last) if begin < cut < end)})
    for left, right in pairwise(cuts):
        yield left, right, first <= left < last
