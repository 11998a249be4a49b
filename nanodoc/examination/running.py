"""Which functions of the user's a step runs, as far as names tell: what the source says of others
is no evidence, since nobody may call them."""

from __future__ import annotations

import ast
import dis
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.trace.branches import Scope, ran
from nanodoc.trace.files import USER, frame_kind
from nanodoc.trace.made_in import Scopes, own_scope
from nanodoc.trace.parsed import FUNCTION, tree_of
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


def ran_statements(scope: Scope, file: str, recipe: Recipe) -> dict[int, str]:
    """As `branches.ran`, of a scope that ran, in a file of the training's."""
    module = tree_of(file)
    return ran(scope, module, _globals(file, recipe)) if module is not None else {}


def states_in(file: str, recipe: Recipe) -> Callable[[Scope], dict[int, str]]:
    """`ran_statements` of the scopes of a file that the step runs, empty of others."""
    running = running_scopes(recipe)

    def states(scope: Scope) -> dict[int, str]:
        return ran_statements(scope, file, recipe) if scope_of(file, scope) in running else {}

    return states


def _globals(file: str, recipe: Recipe) -> Mapping[str, Any]:
    """The global names of a source file of the training; empty where they are not known."""
    step: Any = recipe.train_step
    code = getattr(step, "code", None)
    if code is not None and os.path.abspath(code.co_filename) == os.path.abspath(file):
        namespace: Mapping[str, Any] = step.namespace
        return namespace
    for module in list(sys.modules.values()):
        held = getattr(module, "__file__", None)
        if isinstance(held, str) and os.path.abspath(held) == os.path.abspath(file):
            return vars(module)
    return {}


def _called(code: CodeType, values: dict[str, Any]) -> Iterator[Any]:
    # a module's code names what it defines, too: that is stored, and nobody may load it
    loaded = {i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")}
    for name in {name for name in loaded if isinstance(name, str)} & values.keys():
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
