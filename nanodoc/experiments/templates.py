"""What a fix's template such as "{x}.clamp_min(1e-12)" does to a tensor. Nothing is evaluated: a
few forms are understood."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import torch

_OPERATORS: dict[type[Any], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.Eq: operator.eq,
}
_METHODS = {
    "clamp_min",
    "clamp_max",
    "clamp",
    "masked_fill",
    "nan_to_num",
    "amax",
    "isneginf",
    "isinf",
    "abs",
    "all",
    "squeeze",
}
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "linspace": torch.linspace,
    "diag": torch.diag,
    "eye": torch.eye,
}


def function_of(template: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The template as a function of a tensor. Raises ValueError for anything but numbers,
    arithmetic, comparisons and the methods that fixes use."""
    try:
        tree = ast.parse(template.replace("{x}", "x"), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not an expression: {template!r}") from error
    _walk(tree, torch.zeros(1, 1))  # what is not understood is refused before anything runs

    def function(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _walk(tree, x)
        return out

    return function


def _walk(tree: ast.expr, x: torch.Tensor) -> Any:
    if isinstance(tree, ast.Name) and tree.id == "x":
        return x
    if isinstance(tree, ast.Constant) and isinstance(tree.value, (bool, int, float)):
        return tree.value
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return -_walk(tree.operand, x)
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATORS:
        return _OPERATORS[type(tree.op)](_walk(tree.left, x), _walk(tree.right, x))
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and type(tree.ops[0]) in _OPERATORS:
        return _OPERATORS[type(tree.ops[0])](_walk(tree.left, x), _walk(tree.comparators[0], x))
    if (
        isinstance(tree, ast.Subscript)
        and ast.unparse(tree.value) == "x.shape"
        and isinstance(tree.slice, (ast.Constant, ast.UnaryOp))
    ):
        return x.shape[_walk(tree.slice, x)]
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute):
        arguments = [_walk(argument, x) for argument in tree.args]
        keywords = {
            word.arg: _walk(word.value, x) for word in tree.keywords if word.arg is not None
        }
        owner, name = tree.func.value, tree.func.attr
        if isinstance(owner, ast.Name) and owner.id == "torch" and name in _FUNCTIONS:
            made = _FUNCTIONS[name](*arguments, **keywords)
            return made.to(x)
        if name in _METHODS:
            return getattr(_walk(owner, x), name)(*arguments, **keywords)
    raise ValueError(f"not part of a fix: {ast.unparse(tree)}")
