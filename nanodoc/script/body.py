"""A loop's body as a function of the variables of its frame, so that one iteration can be run
again."""

from __future__ import annotations

import ast
import contextlib
import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any

from nanodoc.instrument.frames import look_through
from nanodoc.instrument.originals import their_side
from nanodoc.instrument.taps import kept_as_they_are
from nanodoc.script.loops import Loop
from nanodoc.script.suspended import as_run_again

look_through(__file__)

_UNBOUND = "__nanodoc_unbound__"
_ONCE = "__nanodoc_once__"
_OUTER = "__nanodoc_outer__"
_LEFT = "__nanodoc_body_left__"


class Body:
    """The body of `loop`, which runs in frames of `code`. Tracebacks and traces of it name the
    user's own lines. A `told` one tells how it was left."""

    def __init__(self, loop: Loop, code: CodeType, *, told: bool = False) -> None:
        function = loop.function
        self._every: list[str] = []
        self._shared: list[str] = []
        self._missing = object()
        self.module_level = function is None
        once = _once(loop, told=told)
        if function is None:
            tree = ast.fix_missing_locations(ast.Module([once], []))
            self._code = compile(tree, loop.file, "exec", dont_inherit=True)
            return
        stated = {n for g in ast.walk(function) if isinstance(g, ast.Global) for n in g.names}
        named = [n for n in code.co_varnames if n not in stated and n.isidentifier()]
        named += loop.targets  # those of a comprehension are variables of its own
        self._shared = [
            name
            for name in dict.fromkeys((*code.co_cellvars, *code.co_freevars))
            if name not in stated and name != "__class__"
        ]
        self._every = [name for name in dict.fromkeys(named) if name not in self._shared]
        self._inside = f"{function.name}.<locals>."
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
        whole = _code_named(compile(tree, loop.file, "exec", dont_inherit=True), _OUTER)
        found = _code_named(whole, function.name) if whole is not None else None
        assert found is not None  # the functions were put there above
        self._code = found.replace(co_qualname=code.co_qualname)

    def _function(
        self, like: ast.FunctionDef | ast.AsyncFunctionDef, body: ast.stmt, stated: list[str]
    ) -> ast.stmt:
        """A function named as `like`, of the variables of its frame; `stated` are the names that it
        says are global. Variables that its closures share are those of a function around it, so
        that the closures' own cells can be put in their place."""
        inner: list[ast.stmt] = [ast.Global(stated)] if stated else []
        if self._shared:
            inner.append(ast.Nonlocal(list(self._shared)))
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
        around: list[ast.stmt] = [
            ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in self._shared
        ]
        step = _define(like.name, self._every, [*inner, body])
        return _define(_OUTER, [], [*around, step])

    def __call__(
        self,
        variables: Mapping[str, Any],
        namespace: dict[str, Any],
        left: Callable[[FrameType], None] = lambda frame: None,
    ) -> Any:
        """Runs it once. `namespace` are the globals; at module level the variables are put there,
        and afterwards those that stood there before. Of a told one, `left` is given the frame when
        it is left, by whatever way."""
        namespace[_LEFT] = lambda: left(sys._getframe(1))
        try:
            with kept_as_they_are(), their_side():
                return self._run(variables, namespace)
        finally:
            namespace.pop(_LEFT, None)

    def _run(self, variables: Mapping[str, Any], namespace: dict[str, Any]) -> Any:
        if self.module_level:
            before = {name: namespace[name] for name in variables if name in namespace}
            known = set(namespace)
            namespace.update(variables)
            try:
                exec(self._code, namespace)
            finally:
                # a compiler has put what its code needs there, and takes it away by itself
                own = [n for n in namespace if n not in known and not n.startswith("__")]
                for name in own:
                    del namespace[name]
                namespace.update(before)
            return None
        namespace[_UNBOUND] = missing = self._missing
        with self._cells(variables) as cells:
            try:
                function = FunctionType(self._code, namespace, self._code.co_name, None, cells)
                return function(*[variables.get(name, missing) for name in self._every])
            finally:
                namespace.pop(_UNBOUND, None)

    @contextlib.contextmanager
    def _cells(self, variables: Mapping[str, Any]) -> Iterator[tuple[CellType, ...]]:
        """The cells of the shared variables, with their values of then; what the script's closures
        hold now is put back."""
        known = self._known_cells(variables)
        cells, before = [], []
        for name in self._code.co_freevars:
            cell = known.get(name)
            if cell is None:
                cell = CellType()
            else:
                before.append((cell, *_content(cell)))
            if name in variables:
                cell.cell_contents = variables[name]
            cells.append(cell)
        try:
            yield tuple(cells)
        finally:
            for cell, bound, value in before:
                if bound:
                    cell.cell_contents = value
                else:
                    del cell.cell_contents

    def _known_cells(self, variables: Mapping[str, Any]) -> dict[str, CellType]:
        """Those of functions that were defined in this one and stand among its variables."""
        found: dict[str, CellType] = {}
        for value in variables.values():
            if isinstance(value, FunctionType) and self._inside in value.__qualname__:
                pairs = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
                found.update({name: cell for name, cell in pairs if name in self._shared})
        return found

    @property
    def code(self) -> CodeType:
        """The compiled body."""
        return self._code


def _content(cell: CellType) -> tuple[bool, Any]:
    try:
        return True, cell.cell_contents
    except ValueError:  # it is empty
        return False, None


def _define(name: str, parameters: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    return ast.FunctionDef(
        name=name,
        args=ast.arguments(
            posonlyargs=[],
            args=[ast.arg(parameter) for parameter in parameters],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        ),
        body=body,
        decorator_list=[],
        returns=None,
        type_comment=None,
    )


def _once(loop: Loop, *, told: bool) -> ast.For:
    """A loop of one turn around the body, so that `break` and `continue` end it."""
    body: list[ast.stmt] = [*as_run_again(copy.deepcopy(statement) for statement in loop.body)]
    first = body[0]
    if told:
        body = [ast.Try(body, [], [], [_call(_LEFT)])]
    once = ast.For(
        target=ast.Name(_ONCE, ast.Store()),
        iter=ast.Tuple([ast.Constant(None)], ast.Load()),
        body=body,
        orelse=[],
    )
    for node in (once, once.target, once.iter, once.iter.elts[0]):  # type: ignore[attr-defined]  # the tuple made above
        ast.copy_location(node, first)
    for part in body if told else ():
        for node in ast.walk(part):
            if not hasattr(node, "lineno") and isinstance(node, (ast.stmt, ast.expr)):
                ast.copy_location(node, first)
    return once


def _call(name: str) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))


def _code_named(code: CodeType, name: str) -> CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_name == name:
                return constant
            found = _code_named(constant, name)
            if found is not None:
                return found
    return None
