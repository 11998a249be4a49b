"""Which functions of the user's a step runs, as far as names tell: what the source says of others
is no evidence, since nobody may call them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.made_in import Scopes, own_scope
from nanodoc.trace.parsed import FUNCTION
from nanodoc.trace.returned import code_of

_MOST = 200  # functions


def running_scopes(recipe: Recipe) -> Scopes:
    """Those of the step's own functions and of all that they call by a name or as a method."""
    found: Scopes = set()
    step: Any = recipe.train_step
    waiting: list[Any] = [f for f in (recipe.loss_fn, step) if f is not None]
    if getattr(step, "of_script", False) and step.code is not None:
        values = {**step.namespace, **step.variables}
        codes = (step.code, *step.callers)
        found |= {own_scope(code) for code in codes}
        waiting = [function for code in codes for function in _called(code, values)]
    while waiting and len(found) < _MOST:
        function = waiting.pop()
        code = code_of(function)
        if code is None or own_scope(code) in found:
            continue
        found.add(own_scope(code))
        values = {name: value for name, _, value in variables_of(function)}
        waiting += _called(code, values)
        owner = getattr(function, "__self__", None)
        if owner is not None:
            waiting += _methods(code, owner)
    return found


def scope_of(file: str, node: ast.AST) -> tuple[str, int]:
    """A function's or module's own, as `running_scopes` gives it."""
    if not isinstance(node, FUNCTION):
        return os.path.abspath(file), 0
    return os.path.abspath(file), min(n.lineno for n in (node, *node.decorator_list))


def _called(code: CodeType, values: dict[str, Any]) -> Iterator[Any]:
    names = {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}
    for name in names & values.keys():
        value = values[name]
        if isinstance(value, (FunctionType, MethodType)):
            yield value
        elif not isinstance(value, type):
            yield from _methods(code, value)


def _methods(code: CodeType, value: Any) -> Iterator[Any]:
    """Methods of an object that the code names."""
    kind = type(value)
    for base in kind.__mro__:
        for name in code.co_names:
            method = vars(base).get(name)
            if isinstance(method, FunctionType):
                file = method.__code__.co_filename
                if frame_kind(file) == USER:
                    yield MethodType(method, value)
