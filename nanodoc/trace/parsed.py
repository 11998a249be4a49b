"""The syntax trees of the user's source files."""

from __future__ import annotations

import ast
import linecache
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


def nodes_of(file: str) -> list[ast.AST]:
    """All nodes of a file's tree, from the outside in."""
    tree = tree_of(file)
    return list(ast.walk(tree)) if tree is not None else []


def definition_of(code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The `def` that a function's code was compiled from."""
    for node in nodes_of(code.co_filename):
        if isinstance(node, FUNCTION) and node.name == code.co_name:
            decorators = [decorator.lineno for decorator in node.decorator_list]
            if min([node.lineno, *decorators]) == code.co_firstlineno:
                return node
    return None
