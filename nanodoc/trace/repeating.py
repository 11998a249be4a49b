"""Which lines of a file give one computed value several times: read from the source."""

from __future__ import annotations

import ast

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import function_around, nodes_of
from nanodoc.vocabulary.calls import JOINS
from nanodoc.vocabulary.names import canonical


def lines_repeating(file: str) -> list[SourceSpan]:
    """The lines of a file where a function gives what it has just computed several times:
    `return view, view`, `[view for _ in range(2)]`, `torch.cat((view, view))`."""
    nodes = nodes_of(file)
    found = set[int]()
    for function in nodes:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        inside = list(ast.walk(function))
        computed = {
            target.id
            for node in inside
            if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Call, ast.BinOp))
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        found |= {getattr(node, "lineno", 0) for node in inside if _repeated(node) in computed}
    return [line_span(file, line, function_around(nodes, line)) for line in sorted(found)]


def _repeated(node: ast.AST) -> str | None:
    """The name whose value is given several times."""
    given: ast.AST | None = node.value if isinstance(node, ast.Return) else None
    if (
        isinstance(node, ast.Call)
        and canonical(getattr(node.func, "attr", "")) in JOINS
        and node.args
    ):
        given = node.args[0]
    if isinstance(given, (ast.Tuple, ast.List)):
        names = [each.id for each in given.elts if isinstance(each, ast.Name)]
        alike = 1 < len(given.elts) == len(names) and len(set(names)) == 1
        return names[0] if alike else None
    if isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Name):
        targets = [n for g in node.generators for n in ast.walk(g.target)]
        bound = {n.id for n in targets if isinstance(n, ast.Name)}
        return node.elt.id if node.elt.id not in bound else None
    return None
