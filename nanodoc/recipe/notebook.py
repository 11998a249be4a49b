"""The Python of a notebook: its code cells, without magics and shell lines. Nothing is run."""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from nanodoc.errors import UsageError

# %%time and the like run the rest of their cell as Python, %%bash and the like do not
_OF_PYTHON = re.compile(r"%%(?:time|timeit|capture|prun|python3?|memit|mprun)\b")
_MAGIC = re.compile(
    r"\s*(?:!(?!=)|%%?[A-Za-z_]|\?)"  # !pip install x, %cd x, ?x
    r"|\s*[\w., ]{1,200}=\s*(?:!|%[A-Za-z_])"  # x = !ls, x = %sql ...
    r"|\s*[\w.]{1,200}\?{1,2}\s*$"  # x?
)


@dataclass(frozen=True, slots=True)
class Notebook:
    """The code cells as one source, and the first line of each in it."""

    source: str
    starts: list[int]

    def place(self, line: int) -> str:
        return f"code cell {bisect_right(self.starts, line)}"


def notebook_of(content: bytes, name: str) -> Notebook:
    """Raises `UsageError` for what is no notebook of Python, or has a cell that does not parse."""
    try:
        book = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not a notebook: {str(error)[:100]}") from error
    cells = book.get("cells") if isinstance(book, dict) else None
    if not isinstance(cells, list):
        if isinstance(book, dict) and "worksheets" in book:
            raise UsageError(
                f"{name} has an old notebook format; convert it: jupyter nbconvert --to notebook "
                f"{name}"
            )
        raise UsageError(f"{name} is not a notebook: it has no list of cells")
    language = _language(book)
    if language not in ("", "python"):
        raise UsageError(f"{name} is a notebook of {language[:40]!r}, not of Python")
    sources = [_source(cell, name) for cell in cells if _is_code(cell)]
    lines: list[str] = []
    starts = []
    for number, source in enumerate(sources, 1):
        starts.append(len(lines) + 1)
        lines += _python(source, f"code cell {number} of {name}").split("\n")
    return Notebook("\n".join(lines) + "\n", starts)


def _language(book: dict[str, Any]) -> str:
    """Empty where it is not said."""
    told: Any = book
    for key in ("metadata", "kernelspec", "language"):
        told = told.get(key) if isinstance(told, dict) else None
    return told.lower() if isinstance(told, str) else ""


def _is_code(cell: Any) -> bool:
    return isinstance(cell, dict) and cell.get("cell_type") == "code"


def _source(cell: dict[str, Any], name: str) -> str:
    told = cell.get("source", "")
    parts = told if isinstance(told, list) else [told]
    if not all(isinstance(part, str) for part in parts):
        raise UsageError(f"{name} is not a notebook: a code cell has no text")
    return "".join(parts)


def parsed(source: str | bytes, place: str) -> ast.Module:
    """Raises `UsageError` for what is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        told = " ".join(str(error).split())[:200]
        raise UsageError(f"{place} is not valid Python: {told}") from error


def _python(source: str, place: str) -> str:
    """The cell as it is where it parses, else without its magics."""
    try:
        parsed(source, place)
    except UsageError:
        source = _without_magics(source)
        parsed(source, place)
    return source


def _without_magics(source: str) -> str:
    """Magics and shell lines become `pass`, so that blocks stay blocks and lines keep their
    numbers."""
    lines = source.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%") and not _OF_PYTHON.match(lines[first]):
        return "\n" * (len(lines) - 1)
    out, goes_on = [], False
    for line in lines:
        dropped = goes_on or _MAGIC.match(line) is not None
        indent = line[: len(line) - len(line.lstrip())]
        out.append(line if not dropped else "" if goes_on else f"{indent}pass")
        goes_on = dropped and line.rstrip().endswith("\\")
    return "\n".join(out)
