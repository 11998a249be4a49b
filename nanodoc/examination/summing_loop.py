"""The loops in the user's source that sum rewards up with a discount, read from the source."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import nodes_of
from nanodoc.trace.spans import Place, resolved

_STORING = ("append", "appendleft", "insert", "extend")


@dataclass(frozen=True, slots=True)
class SummingLoop:
    """`for reward in rewards: total = reward + discount * total; sums.append(total)`"""

    at: SourceSpan
    """The line of the `for`."""
    stored_at: SourceSpan
    """The line that keeps each sum."""
    backwards: bool
    """It runs from the last reward to the first."""
    in_front: bool
    """Each sum is put before the ones so far."""


def summing_loops(file: str) -> list[SummingLoop]:
    """Those of a file."""
    return [
        loop
        for function in nodes_of(file)
        if isinstance(function, (ast.FunctionDef, ast.Module))
        for node in _own(function)
        if isinstance(node, ast.For) and (loop := _loop(node, file, function)) is not None
    ]


def asked_backwards(place: Place | None) -> bool:
    """A line stands in a loop that runs from the last of something to the first."""
    span = resolved(place)
    if place is None or span is None:
        return False
    return any(
        isinstance(node, (ast.For, ast.comprehension))
        and _backwards(node.iter)
        and node.iter.lineno <= span.line <= (getattr(node, "end_lineno", None) or span.line)
        for node in nodes_of(place[0].co_filename)
    )


def _own(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function that are not of a function in it."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(function))
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append(node)
            waiting += ast.iter_child_nodes(node)
    return found


def _loop(node: ast.For, file: str, function: ast.AST) -> SummingLoop | None:
    if not any(_sums(statement) for statement in node.body):
        return None
    name = getattr(function, "name", "<module>")
    stored = next((s for s in node.body if _stores(s)), None)
    if stored is None:
        return None
    call = stored.value if isinstance(stored, ast.Expr) else None
    return SummingLoop(
        at=line_span(file, node.lineno, name),
        stored_at=line_span(file, stored.lineno, name),
        backwards=_backwards(node.iter),
        in_front=_in_front(call),
    )


def _sums(statement: ast.stmt) -> bool:
    """`total = reward + discount * total`"""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, value = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(value, ast.BinOp):
        return False
    if not isinstance(value.op, ast.Add):
        return False
    products = [
        side
        for side in (value.left, value.right)
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
    ]
    # two products are a running mean
    return len(products) == 1 and any(
        isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(products[0])
    )


def _stores(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return isinstance(statement.targets[0], ast.Subscript)
    call = statement.value if isinstance(statement, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _STORING
    )


def _in_front(call: ast.expr | None) -> bool:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    first = call.args[0] if call.args else None
    at_zero = isinstance(first, ast.Constant) and first.value == 0 and len(call.args) > 1
    return call.func.attr == "appendleft" or (call.func.attr == "insert" and at_zero)


def _backwards(values: ast.expr) -> bool:
    """`rewards[::-1]`, `rewards.flip(0)`, `reversed(rewards)`, `range(n - 1, -1, -1)`, also inside
    of `enumerate`, `zip` and the like."""
    for node in ast.walk(values):
        step: ast.expr | None = None
        if isinstance(node, ast.Slice):
            step = node.step
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("flip", "flipud"):
                return True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "reversed":
                return True
            if node.func.id == "range" and len(node.args) == 3:
                step = node.args[2]
        if isinstance(step, ast.UnaryOp) and isinstance(step.op, ast.USub):
            return True
    return False
