"""A loop's body as a function of the variables of its frame, so that one iteration can be run
again."""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from types import CellType, CodeType, FunctionType
from typing import Any

from nanodoc.script.loops import Loop

_UNBOUND = "__nanodoc_unbound__"
_ONCE = "__nanodoc_once__"


class Body:
    """The body of `loop`, which runs in frames of `code`. Tracebacks and traces of it name the
    user's own lines."""

    def __init__(self, loop: Loop, code: CodeType) -> None:
        function = loop.function
        self._every: list[str] = []
        self._missing = object()
        self.module_level = function is None
        once = _once(loop)
        if function is None:
            tree = ast.fix_missing_locations(ast.Module([once], []))
            self._code = compile(tree, loop.file, "exec", dont_inherit=True)
            return
        stated = {n for g in ast.walk(function) if isinstance(g, ast.Global) for n in g.names}
        named = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        self._every = [
            name
            for name in dict.fromkeys(named)
            if name not in stated and name.isidentifier() and name != "__class__"
        ]
        step = self._function(function, once, sorted(stated))
        # for the mangling of private names, and for super()
        klass = next(
            (node for node in reversed(loop.scope) if isinstance(node, ast.ClassDef)), None
        )
        if klass is not None:
            step = ast.ClassDef(
                name=klass.name, bases=[], keywords=[], body=[step], decorator_list=[]
            )
        for node in ast.walk(step):
            if not hasattr(node, "lineno") and isinstance(node, (ast.stmt, ast.expr, ast.arg)):
                ast.copy_location(node, loop.body[0])
        tree = ast.fix_missing_locations(ast.Module([step], []))
        found = _code_named(compile(tree, loop.file, "exec", dont_inherit=True), function.name)
        assert found is not None  # the function was put there above
        self._code = found

    def _function(
        self, like: ast.FunctionDef | ast.AsyncFunctionDef, body: ast.stmt, stated: list[str]
    ) -> ast.stmt:
        """A function named as `like`, of all variables of its frame; `stated` are the names that it
        says are global."""
        inner: list[ast.stmt] = [ast.Global(stated)] if stated else []
        # a variable that is not bound yet raises when it is read, as it would have
        inner += [
            ast.If(
                ast.Compare(
                    ast.Name(name, ast.Load()), [ast.Is()], [ast.Name(_UNBOUND, ast.Load())]
                ),
                [ast.Delete([ast.Name(name, ast.Del())])],
                [],
            )
            for name in self._every
        ]
        arguments = ast.arguments(
            posonlyargs=[],
            args=[ast.arg(name) for name in self._every],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        )
        return ast.FunctionDef(
            name=like.name,
            args=arguments,
            body=[*inner, body],
            decorator_list=[],
            returns=None,
            type_comment=None,
        )

    def __call__(
        self, variables: Mapping[str, Any], namespace: dict[str, Any], owner: type | None = None
    ) -> Any:
        """Runs it once. `namespace` are the globals; at module level the variables are put there,
        and afterwards those that stood there before. `owner` is the class that super() means."""
        if self.module_level:
            before = {name: namespace[name] for name in variables if name in namespace}
            known = set(namespace)
            namespace.update(variables)
            try:
                exec(self._code, namespace)
            finally:
                for name in [name for name in namespace if name not in known]:
                    del namespace[name]
                namespace.update(before)
            return None
        namespace.setdefault(_UNBOUND, self._missing)
        try:
            missing = namespace[_UNBOUND]
            cells = tuple(
                CellType(owner if name == "__class__" else variables.get(name))
                for name in self._code.co_freevars
            )
            function = FunctionType(self._code, namespace, self._code.co_name, None, cells)
            return function(*[variables.get(name, missing) for name in self._every])
        finally:
            namespace.pop(_UNBOUND, None)

    @property
    def code(self) -> CodeType:
        """The compiled body."""
        return self._code


def _once(loop: Loop) -> ast.For:
    """A loop of one turn around the body, so that `break` and `continue` end it."""
    body = [copy.deepcopy(statement) for statement in loop.body]
    once = ast.For(
        target=ast.Name(_ONCE, ast.Store()),
        iter=ast.Tuple([ast.Constant(None)], ast.Load()),
        body=body,
        orelse=[],
    )
    for node in (once, once.target, once.iter, once.iter.elts[0]):  # type: ignore[attr-defined]  # the tuple made above
        ast.copy_location(node, body[0])
    return once


def _code_named(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_name == name:
                return constant
            found = _code_named(constant, name)
            if found is not None:
                return found
    return None
