"""Which statement of the user's source gives a name its value."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import FUNCTION, end_of, function_around, nodes_of, statements_of

_BINDS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For)


def bound_once(nodes: Sequence[ast.AST], name: str, line: int) -> ast.Assign | None:
    """The only statement that binds the name, in the innermost function around the line that does
    so, or in the module."""
    around = [n for n in nodes if isinstance(n, FUNCTION) and n.lineno <= line <= end_of(n)]
    for scope in sorted(around, key=lambda node: -node.lineno):
        given = (node.arg for node in ast.walk(scope.args) if isinstance(node, ast.arg))
        if name in given:
            return None
        if found := _binding(scope.body, name):
            return _alone(found)
    module = nodes[0]
    return _alone(_binding(module.body, name)) if isinstance(module, ast.Module) else None


def _binding(body: list[ast.stmt], name: str) -> list[ast.stmt]:
    return [node for node in statements_of(body) if name in _names_bound(node)]


def _alone(found: list[ast.stmt]) -> ast.Assign | None:
    only = found[0] if len(found) == 1 else None
    # of a tuple, the name is a part
    whole = isinstance(only, ast.Assign) and all(isinstance(t, ast.Name) for t in only.targets)
    return only if isinstance(only, ast.Assign) and whole else None


def _names_bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, _BINDS):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            yield from (inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name))


def named_without_call(file: str, method: str) -> SourceSpan | None:
    """The only statement of a user's file that names a method and does not call it:
    `optimizer.zero_grad`, without its parentheses."""
    if frame_kind(file) != USER:
        return None
    nodes = nodes_of(file)
    found = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == method
    ]
    if len(found) != 1:
        return None
    return line_span(file, found[0], function_around(nodes, found[0]))


def prepared_otherwise_at(file: str, line: int) -> SourceSpan | None:
    """The line that makes the one argument by which the data set of the loader made at `line`
    differs from others of its kind in the file: another transform. None where several arguments
    do, or none that is more than a constant."""
    if frame_kind(file) != USER:
        return None
    nodes = nodes_of(file)
    made = _set_of_loader(nodes, line)
    if made is None:
        return None
    kind = ast.dump(made.func)
    calls = (node for node in nodes if isinstance(node, ast.Call) and node is not made)
    others = [_arguments(call) for call in calls if ast.dump(call.func) == kind]
    apart = [
        value
        for key, value in _arguments(made).items()
        if isinstance(value, (ast.Name, ast.Call))
        and any(ast.dump(value) != ast.dump(other.get(key, value)) for other in others)
    ]
    if len(apart) != 1:
        return None
    value = apart[0]
    bound = bound_once(nodes, value.id, line) if isinstance(value, ast.Name) else value
    if bound is None or isinstance(getattr(bound, "value", None), ast.Constant):
        return None
    return line_span(file, bound.lineno, function_around(nodes, bound.lineno))


def _set_of_loader(nodes: Sequence[ast.AST], line: int) -> ast.Call | None:
    """The call that makes the data set of the loader that a call on the line makes."""
    calls = [node for node in nodes if isinstance(node, ast.Call) and node.lineno == line]
    first = next((call.args[0] for call in calls if call.args), None)
    named = (w.value for call in calls for w in call.keywords if w.arg == "dataset")
    given = first if first is not None else next(named, None)
    if isinstance(given, ast.Name):
        bound = bound_once(nodes, given.id, line)
        given = bound.value if bound is not None else None
    return given if isinstance(given, ast.Call) else None


def _arguments(call: ast.Call) -> dict[int | str, ast.expr]:
    found: dict[int | str, ast.expr] = dict(enumerate(call.args))
    found.update({word.arg: word.value for word in call.keywords if word.arg is not None})
    return found
