"""Which names a statement puts together row by row: inputs and their labels."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from nanodoc.trace.parsed import FUNCTION, own_nodes
from nanodoc.trace.row_orders import (
    Orders,
    Pair,
    called,
    dotted,
    in_order,
    parted,
    rows_of,
)


def pairs(statement: ast.stmt, orders: Orders, classes: dict[str, ast.ClassDef]) -> Iterator[Pair]:
    """`orders` are those behind the statement; `classes` the file's own."""
    for node in own_nodes(statement):
        if isinstance(node, ast.Call):
            yield from _given(node, orders, classes)
        elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            yield from _taken_alike(node, orders)
    if isinstance(statement, ast.Assign):
        yield from _cut_alike(statement, orders)


def method_of(kind: ast.ClassDef, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    return next((n for n in kind.body if isinstance(n, FUNCTION) and n.name == name), None)


def taken_together(kind: ast.ClassDef) -> list[Pair]:
    """Attributes of which a data set's `__getitem__` takes the same row."""
    method = method_of(kind, "__getitem__")
    if method is None or len(method.args.args) != 2:
        return []
    owner, index = (argument.arg for argument in method.args.args)
    found = [
        dotted(node.value) or ""
        for statement in in_order(method.body)
        for node in own_nodes(statement)
        if isinstance(node, ast.Subscript) and dotted(node.slice) == index
    ]
    own = dict.fromkeys(name for name in found if name.startswith(f"{owner}."))
    return list(pairwise(own))


def _given(call: ast.Call, orders: Orders, classes: dict[str, ast.ClassDef]) -> Iterator[Pair]:
    """What one call is given: a data set of tensors, zip(), a class of the file's own."""
    names = [rows_of(argument) for argument in call.args]
    if called(call) == "TensorDataset":
        origins = [orders.origin(name or "") for name in names]
        own = [place for place, made in enumerate(origins) if origins.count(made) == 1]
        places = list(pairwise(own))
    elif called(call) == "zip":
        places = [
            (one, other)
            for one, other in pairwise(range(len(names)))
            if orders.belong(names[one] or "", names[other] or "")
        ]
    else:
        places = _places(classes.get(called(call)))
    for one, other in places:
        if max(one, other) < len(names):
            first, second = names[one], names[other]
            if first is not None and second is not None:
                yield first, second


def _places(kind: ast.ClassDef | None) -> list[tuple[int, int]]:
    """The arguments that a class keeps as attributes of which it takes the same row."""
    made = method_of(kind, "__init__") if kind is not None else None
    if kind is None or made is None:
        return []
    parameters = [argument.arg for argument in made.args.args][1:]
    kept = {}
    for statement in in_order(made.body):
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            for target, value in parted(statement.targets[0], statement.value):
                source = rows_of(value)
                if source in parameters:
                    kept[dotted(target)] = parameters.index(source)
    return [
        (kept[one], kept[other])
        for one, other in taken_together(kind)
        if one in kept and other in kept
    ]


def _taken_alike(node: ast.Tuple, orders: Orders) -> Iterator[Pair]:
    """The names of `x[i], y[i]`, of one index that is no permutation."""
    parts = [part for part in node.elts if isinstance(part, ast.Subscript)]
    if len(parts) != len(node.elts) or len({ast.dump(part.slice) for part in parts}) != 1:
        return
    varies = any(isinstance(n, ast.Name) for n in ast.walk(parts[0].slice))
    if not varies or dotted(parts[0].slice) in orders.indices:
        return
    for one, other in pairwise(dotted(part.value) for part in parts):
        if one is not None and other is not None:
            yield one, other


def _cut_alike(statement: ast.Assign, orders: Orders) -> Iterator[Pair]:
    """What the statement cuts out, beside other names that were cut in the same way."""
    targets = [n for target in statement.targets for n in ast.walk(target)]
    for name in filter(None, map(dotted, targets)):
        for other, cut in orders.cuts.items():
            if other != name and other not in orders.indices and cut == orders.cuts.get(name):
                yield other, name
