"""Where in the user's file a key of the recipe is written, by its syntax tree; the file is only
parsed."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from nanodoc.facts.source import SourceSpan


def line_of_key(path: Path, function: str, key: str, shown: str) -> SourceSpan | None:
    """The place of `"key": value` or `key=value` in `function`, else the only one in the file; None
    where there is no such place or no telling. `shown` is how the file is named in a report."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = _tree_of(source)
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return None
    bodies = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function
    ]
    inside = [pair for body in bodies for pair in _pairs(body, key)]
    found = inside[:1] or list(_pairs(tree, key))
    if len(found) != 1:
        return None
    begin, end = found[0]
    lines = source.splitlines()[begin.lineno - 1 : (end.end_lineno or begin.lineno)]
    code = textwrap.dedent("\n".join(lines)).strip()
    return SourceSpan(
        file=shown,
        line=begin.lineno,
        end_line=end.end_lineno or begin.lineno,
        column=_characters(lines[0], begin.col_offset) + 1,
        end_column=_characters(lines[-1], end.end_col_offset or 0) + 1,
        function=function,
        code=code,
        indent=max(0, lines[0].find(code.split("\n")[0])),
    )


@lru_cache(maxsize=4)
def _tree_of(source: str) -> ast.Module:
    return ast.parse(source)


def _pairs(tree: ast.AST, key: str) -> Iterator[tuple[ast.expr | ast.keyword, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key:
                    yield name, value
        elif isinstance(node, ast.keyword) and node.arg == key:
            yield node, node.value


def _characters(line: str, offset: int) -> int:
    return len(line.encode()[:offset].decode(errors="ignore"))
