"""The statements of a source file: which names each one reads and writes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import FUNCTION, nodes_of

_MOST_NAMES = 24


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A simple statement, or the head of a compound one (`for x in y:`)."""

    line: int
    end_line: int
    names: tuple[str, ...]
    """Dotted names that the statement mentions, such as `self.table`; those that it only binds are
    among them."""
    bound: frozenset[str]
    """The names among them that are bound, written into, or have a method called: what the
    statement may change."""
    returns: bool = False


@lru_cache(maxsize=256)
def statements_of(file: str) -> dict[int, Statement]:
    """Line number to the statement on that line; nothing where the source cannot be had or
    read."""
    found: dict[int, Statement] = {}
    for node in nodes_of(file):
        if not isinstance(node, ast.stmt):
            continue
        parts = list(_own_parts(node))
        if not parts:
            continue
        first = node.lineno
        last = max((part.end_lineno or part.lineno for part in parts), default=first)
        names, bound = _names(node, parts)
        statement = Statement(first, last, names, bound, isinstance(node, ast.Return))
        for line in range(first, last + 1):
            # the deepest statement of a line is walked last
            found[line] = statement
    return found


@lru_cache(maxsize=256)
def stands_behind_loop(file: str, inner: int, outer: int) -> bool:
    """Line `outer` stands behind the innermost loop around line `inner`, and in the same
    function."""
    loops, functions = [], []
    for node in nodes_of(file):
        if isinstance(node, ast.stmt) and _holds(node, inner):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
                loops.append(node)
            elif isinstance(node, FUNCTION):
                functions.append(node)
    if not loops or (loops[-1].end_lineno or 0) >= outer:
        return False
    return not functions or _holds(functions[-1], outer)


def _holds(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def written_at(file: str, lines: range, name: str, function: str) -> SourceSpan | None:
    """The last statement among `lines`, which are of `function`, that binds `name`, or writes into
    it, from another value."""
    base = name.partition("[")[0]
    known = statements_of(file)
    found = [
        statement
        for line in lines
        if (statement := known.get(line)) is not None
        and statement.line == line
        and base in statement.bound
        and set(statement.names) != {base}
    ]
    return line_span(file, found[-1].line, function) if found else None


def _own_parts(node: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement that are not in its body."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, ast.withitem):
            yield child.context_expr
            if child.optional_vars is not None:
                yield child.optional_vars


def _names(node: ast.stmt, parts: list[ast.expr]) -> tuple[tuple[str, ...], frozenset[str]]:
    names: dict[str, None] = {}
    bound: set[str] = set()
    for part in parts:
        for expression in ast.walk(part):
            name = _dotted(expression)
            if name is None:
                continue
            names[name] = None
            if isinstance(getattr(expression, "ctx", None), ast.Store):
                bound.add(name)
        for expression in ast.walk(part):
            bound.update(_written_into(expression))
    if isinstance(node, ast.AugAssign) and (target := _dotted(node.target)) is not None:
        bound.add(target)
    kept = list(names)[:_MOST_NAMES]
    return tuple(kept), frozenset(bound & set(kept))


def _written_into(expression: ast.expr | ast.AST) -> Iterator[str]:
    """The object whose element is stored, whose method is called, or that is an argument."""
    if isinstance(expression, ast.Subscript) and isinstance(expression.ctx, ast.Store):
        values: list[ast.expr] = [expression.value]
    elif isinstance(expression, ast.Call):
        values = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        if isinstance(expression.func, ast.Attribute):
            values.append(expression.func.value)
    else:
        return
    for value in values:
        while isinstance(value, ast.Subscript):
            value = value.value
        if (name := _dotted(value)) is not None:
            yield name


def _dotted(node: ast.AST) -> str | None:
    """`self.table` of its nodes; None for anything that is no name with attributes."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])
