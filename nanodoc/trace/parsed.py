"""The syntax trees of the user's source files."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache(maxsize=16)
def tree_of(file: str) -> ast.Module | None:
    """The tree of a file as it was loaded; None where its source cannot be had or read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


@lru_cache(maxsize=16)
def nodes_of(file: str) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, from the outside in."""
    tree = tree_of(file)
    return tuple(ast.walk(tree)) if tree is not None else ()


def definition_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The `def` that a function's code was compiled from."""
    for node in nodes_of(code.co_filename):
        if isinstance(node, FUNCTION) and node.name == code.co_name:
            decorators = [decorator.lineno for decorator in node.decorator_list]
            if min([node.lineno, *decorators]) == code.co_firstlineno:
                return node
    return None


def statements_of(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of nested blocks too, not those of nested functions and classes."""
    waiting = list(body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (*FUNCTION, ast.ClassDef)):
            waiting += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
            for handler in getattr(node, "handlers", []):
                waiting += handler.body


def own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Those of a statement, not of the statements in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [n for n in ast.iter_child_nodes(node) if not isinstance(n, ast.stmt)]


def end_of(node: ast.AST) -> int:
    """The last line of a node."""
    return getattr(node, "end_lineno", None) or 0


def function_around(nodes: Sequence[ast.AST], line: int) -> str:
    """The name of the innermost function that holds a line; "<module>" outside of all."""
    around = [n for n in nodes if isinstance(n, FUNCTION) and n.lineno <= line <= end_of(n)]
    return max(around, key=lambda node: node.lineno).name if around else "<module>"
