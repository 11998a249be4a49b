"""The line that stores what a variable or an attribute holds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import FUNCTION, end_of, function_around, nodes_of, statements_of

_ADDS = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})


def stored_in_function(file: str, lines: range, name: str) -> SourceSpan | None:
    """The statement that stores a computed value under `name`, for the loop whose body has these
    lines: the last one in the body, or else the last one before the loop in the same function. None
    where there is none."""
    nodes = nodes_of(file)
    around = [n for n in nodes if isinstance(n, FUNCTION) and _holds(n, lines.start)]
    scope = around[-1] if around else next(iter(nodes), None)
    found = list(_stores(statements_of(getattr(scope, "body", ())), name))
    inside = [line for line in found if line in lines]
    before = [line for line in found if line < lines.start]
    return _span(file, max(inside or before, default=None))


def stored_in_closure(file: str, line: int, name: str) -> SourceSpan | None:
    """The last statement that stores a computed value under `name` in a function around the one
    that stands at `line`, which reads it as a closure does. None where there is none."""
    around = [n for n in nodes_of(file) if isinstance(n, FUNCTION) and _holds(n, line)]
    for function in reversed(around):
        found = list(_stores(statements_of(function.body), name))
        if found:
            return _span(file, max(found))
    return None


def stored_as_attribute(file: str, attribute: str) -> SourceSpan | None:
    """The only statement of a file that stores a computed value in an attribute of that name. None
    where there is none, or more than one."""
    statements = (node for node in nodes_of(file) if isinstance(node, ast.stmt))
    found = list(_stores(statements, f".{attribute}"))
    return _span(file, found[0]) if len(found) == 1 else None


def _stores(statements: Iterable[ast.stmt], name: str) -> Iterator[int]:
    """The lines of those that store under `name`; with a dot in front, under such an attribute."""
    for statement in statements:
        for target in _targets(statement):
            text = ast.unparse(target)
            if text == name or (name.startswith(".") and text.endswith(name)):
                yield statement.lineno
                break


def _targets(statement: ast.stmt) -> Iterator[ast.AST]:
    """What the statement stores in; nothing where it stores a constant or an empty container."""
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Constant) or not getattr(value, "elts", True):
        return
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = list(statement.targets)
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)) and value is not None:
        targets = [statement.target]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        targets = [value.func.value] if value.func.attr in _ADDS else []
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        elif isinstance(target, (ast.Subscript, ast.Starred)):
            targets.append(target.value)
        else:
            yield target


def _holds(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= end_of(node)


def _span(file: str, line: int | None) -> SourceSpan | None:
    if line is None:
        return None
    return line_span(file, line, function_around(nodes_of(file), line))
