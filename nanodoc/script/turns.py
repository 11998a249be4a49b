"""Expressions that are loops: comprehensions, generator expressions and `map`. Their iterable is
marked: what goes through it begins an iteration."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

TURNS = "__nanodoc_turns__"
"""The name of the mark around the iterable."""

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ITEMS = ("batch", "item", "given")
"""What a value is called that `map` gives to a function."""
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True, slots=True)
class Turning:
    """An expression that is a loop. `as_loop` says the same as a statement. `mark` puts the mark
    with a loop's number around its iterable, in the place of it."""

    as_loop: ast.For
    outer: tuple[str, ...]
    """Names that expressions around it bind."""
    inner: tuple[Turning, ...]
    """The same, inside of its body."""
    mark: Callable[[int], None]


def turning_in(statement: ast.stmt) -> list[Turning]:
    """Those of a statement's own expressions that call something in each turn. Of a compound
    statement that is its head; its blocks are other statements."""
    head = [part for _, part in ast.iter_fields(statement) if not _is_block(part)]
    found: list[Turning] = []
    for part in head:
        for node in part if isinstance(part, list) else [part]:
            if isinstance(node, ast.AST):
                found += _found_in(node, statement, ())
    return found


def _is_block(part: Any) -> bool:
    kinds = (ast.stmt, ast.excepthandler, ast.match_case)
    return isinstance(part, list) and bool(part) and isinstance(part[0], kinds)


def _found_in(node: ast.AST, statement: ast.stmt, outer: tuple[str, ...]) -> list[Turning]:
    """`outer` are names that expressions around it bind."""
    if isinstance(node, ast.Lambda):
        return []
    if isinstance(node, _COMPREHENSIONS):
        return _of_comprehension(node, statement, outer)
    found: list[Turning] = []
    for child in ast.iter_child_nodes(node):
        found += _found_in(child, statement, outer)
    of_map = _of_map(node, statement, outer) if isinstance(node, ast.Call) else None
    return [of_map, *found] if of_map is not None else found


def _of_comprehension(
    node: _Comprehension, statement: ast.stmt, outer: tuple[str, ...]
) -> list[Turning]:
    if any(each.is_async for each in node.generators):
        return []
    found = _found_in(node.generators[0].iter, statement, outer)
    *before, last = node.generators
    outer = (*outer, *_bound([each.target for each in before]))
    parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
    if not _calls(parts):
        return found
    names = (*outer, *_bound([last.target]))
    inner = [turning for part in parts for turning in _found_in(part, statement, names)]
    body: ast.stmt = ast.Expr(ast.Tuple(parts, ast.Load()) if len(parts) > 1 else parts[0])
    for condition in reversed(last.ifs):
        body = ast.If(condition, [body], [])

    def mark(number: int) -> None:
        last.iter = _marked(last.iter, number, outer)

    return [
        *found,
        Turning(_as_loop(last.target, last.iter, body, statement), outer, tuple(inner), mark),
    ]


def _of_map(node: ast.Call, statement: ast.stmt, outer: tuple[str, ...]) -> Turning | None:
    """`map` of a function that has a name, or of a lambda, over one iterable."""
    called = isinstance(node.func, ast.Name) and node.func.id == "map"
    if not called or len(node.args) != 2 or node.keywords:
        return None
    function, iterable = node.args
    if isinstance(iterable, ast.Starred):
        return None
    used = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
    body: ast.expr
    if isinstance(function, ast.Lambda):
        arguments = function.args
        if len(arguments.args) != 1 or ast.unparse(arguments) != arguments.args[0].arg:
            return None
        name, body = arguments.args[0].arg, function.body
    else:
        if not _is_plain(function):
            return None
        name = next(name for name in (*_ITEMS, "_given") if name not in used)
        body = ast.Call(function, [ast.Name(name, ast.Load())], [])
    if not _calls([body]):
        return None
    names = (*outer, name)
    inner = tuple(_found_in(body, statement, names))
    target = ast.Name(name, ast.Store())

    def mark(number: int) -> None:
        node.args[1] = _marked(node.args[1], number, outer)

    return Turning(_as_loop(target, iterable, ast.Expr(body), statement), outer, inner, mark)


def _as_loop(target: ast.expr, iterable: ast.expr, body: ast.stmt, statement: ast.stmt) -> ast.For:
    """Its lines are those of the statement's head: a frame that runs it stands in one of them."""
    for node in ast.walk(body):
        if isinstance(node, (ast.expr, ast.stmt)) and not hasattr(node, "lineno"):
            ast.copy_location(node, iterable)
    if not hasattr(target, "lineno"):
        ast.copy_location(target, iterable)
    body.lineno, body.col_offset = statement.lineno, statement.col_offset
    blocks = [part[0] for _, part in ast.iter_fields(statement) if _is_block(part)]
    last = min(
        (max(b.lineno - 1, statement.lineno) for b in blocks if hasattr(b, "lineno")),
        default=statement.end_lineno,
    )
    body.end_lineno, body.end_col_offset = last, statement.end_col_offset
    loop = ast.For(target, iterable, [body], [])
    return ast.copy_location(loop, iterable)


def _marked(iterable: ast.expr, number: int, outer: Sequence[str]) -> ast.expr:
    names = ast.Dict(
        [ast.Constant(name) for name in outer], [ast.Name(name, ast.Load()) for name in outer]
    )
    call = ast.Call(ast.Name(TURNS, ast.Load()), [ast.Constant(number), iterable, names], [])
    for node in (call, call.func, call.args[0], names, *names.keys, *names.values):
        if node is not None:
            ast.copy_location(node, iterable)
    return call


def _bound(targets: Iterable[ast.expr]) -> Iterator[str]:
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id


def _is_plain(function: ast.expr) -> bool:
    """A name, or an attribute of one: to be asked for it again changes nothing."""
    while isinstance(function, ast.Attribute):
        function = function.value
    return isinstance(function, ast.Name)


def _calls(parts: Iterable[ast.expr]) -> bool:
    """It calls something that is no builtin."""
    return any(
        isinstance(node, ast.Call)
        and not (isinstance(node.func, ast.Name) and node.func.id in _BUILTINS)
        for part in parts
        for node in ast.walk(part)
    )
