"""Names that a function of the user's binds and never reads: read from the source."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import FUNCTION, nodes_of, tree_of


def unread_names(place: SourceSpan, names: re.Pattern[str]) -> dict[str, SourceSpan]:
    """Variables and parameters whose names match, each with the line that binds it, of the
    innermost function around `place`, or of its module, where nothing in there reads that name."""
    file = os.path.abspath(place.file)
    around = [
        node
        for node in nodes_of(file)
        if isinstance(node, FUNCTION) and node.lineno <= place.line <= (node.end_lineno or 0)
    ]
    scope = max(around, key=lambda node: node.lineno) if around else tree_of(file)
    if scope is None:
        return {}
    read = {
        node.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    }
    bound: dict[str, int] = {}
    if isinstance(scope, FUNCTION):
        given = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
        bound = {argument.arg: argument.lineno for argument in given}
    for node in _own(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, node.lineno)
    return {
        name: line_span(file, line, place.function)
        for name, line in bound.items()
        if name not in read and names.fullmatch(name) and not name.startswith("_")
    }


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of the functions and classes in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (*FUNCTION, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _own(node)
