"""A source compiled with a mark at the start of every loop's body and one behind every loop, and
around the body of every function that is a step by itself. Line and column numbers stay as they
are; nothing is written to disk."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

from nanodoc.script.body_names import drawn_unseen, order_of_names
from nanodoc.script.loops import Loop, Loops
from nanodoc.script.suspended import (
    SUSPENSIONS,
    can_be_run_again,
    is_suspended,
    with_values_kept,
)
from nanodoc.script.turns import TURNS, Turning, turning_in

BEGIN, LEFT, EACH = "__nanodoc_begin__", "__nanodoc_left__", "__nanodoc_each__"
THROUGH = "__nanodoc_through__"
"""The names of the marks: at the start of an iteration, behind a loop, around an inner loop's
iterable, where a loop came to its end by itself."""
NAMES = {
    "begin": BEGIN,
    "left": LEFT,
    "each": EACH,
    "through": THROUGH,
    "turns": TURNS,
    "suspensions": SUSPENSIONS,
}
"""What `nanodoc.script.marks` has, by the names of a marked source."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Loop = ast.For | ast.While | ast.AsyncFor
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_TRAINING_CALLS = {"backward", "step", "zero_grad"}
_TRAINING_WORDS = ("train", "step", "update", "fit", "learn", "optimi")
# a compiler traces into functions decorated by these, and into what they call
_COMPILERS = ("compile", "jit", "script")


def marked(loops: Loops, source: str | bytes, file: str, *, of_library: bool = False) -> CodeType:
    """The source compiled with marks; `loops` learns of its loops. `of_library`: it is a trainer's,
    whose class may look like a module's. Raises `SyntaxError` as compile() does."""
    tree = ast.parse(source, file)
    marker = _Marker(loops, file, of_library)
    tree.body = _with_marks_imported(marker.statements(tree.body))
    loops.by_file[file] = marker.found
    return compile(tree, file, "exec", dont_inherit=True)


class _Marker:
    """Marks the statements of one file."""

    def __init__(self, loops: Loops, file: str, of_library: bool) -> None:
        self._loops = loops
        self._file = file
        self._of_library = of_library
        self._scope: list[ast.AST] = []
        self._inside = 0
        self.found: list[Loop] = []

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        marked: list[ast.stmt] = []
        for statement in body:
            turning = self._turning(statement)
            if isinstance(statement, _LOOPS) and self._wanted(statement):
                [statement] = self._loop(statement, of_turns=bool(turning))
            else:
                self._within(statement)
            for number in turning:
                statement = _left_behind([statement], number, statement)
            marked.append(statement)
        return marked

    def _turning(self, statement: ast.stmt) -> list[int]:
        """Marks the expressions of a statement that are loops; their numbers."""
        if isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            return []
        return [number for found in turning_in(statement) for number in self._turns(found)]

    def _turns(self, found: Turning) -> list[int]:
        loop = found.as_loop
        if is_suspended(loop) or not self._wanted(loop):
            return []
        draft = self._draft(loop, loop.body)
        inner = [number for each in found.inner for number in self._turns(each)]
        self._done(draft, loop.body, found)
        found.mark(draft.number)
        return [*inner, draft.number]

    def _branch(self, statement: ast.If) -> None:
        """A branch of a loop's body that trains: where the loop has simulated or loaded for long
        without training, the branch is the step."""
        draft = None
        if self._inside and _trains_by_itself(statement.body, loops=True):
            draft = self._draft(statement, statement.body)
        statement.body = self.statements(statement.body)
        statement.orelse = self.statements(statement.orelse)
        if draft is not None:
            self._done(draft, statement.body)
            statement.body = _between_marks(statement.body, draft.number)

    def _within(self, statement: ast.AST) -> None:
        if isinstance(statement, ast.If):
            return self._branch(statement)
        scoped = isinstance(statement, (*_FUNCTIONS, ast.ClassDef))
        step: _Draft | None = None
        if scoped:
            self._scope.append(statement)
            outside, self._inside = self._inside, 0
        if isinstance(statement, _FUNCTIONS) and _is_step(statement):
            step = self._draft(statement, statement.body)
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(statement, name, self.statements(inner))
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            handler.body = self.statements(handler.body)
        if scoped:
            self._scope.pop()
            self._inside = outside
        if step is not None and isinstance(statement, _FUNCTIONS):
            self._done(step, statement.body)
            statement.body = _between_marks(statement.body, step.number)

    def _wanted(self, loop: _Loop) -> bool:
        """Loops in forward() and in compiled functions are the model's. A helper of a module's may
        be called from there: only what trains is marked in such a class."""
        function = next((n for n in reversed(self._scope) if isinstance(n, _FUNCTIONS)), None)
        if is_suspended(loop) and not (_trains_by_name(loop) and can_be_run_again(loop)):
            return False  # loaders' generators above all
        if isinstance(loop, ast.For) and _goes_through_optimizers(loop):
            return False
        if function is None:
            return True
        if _is_the_models(function):
            return False
        of_module = any(
            isinstance(node, ast.ClassDef)
            and any(
                isinstance(inner, _FUNCTIONS) and inner.name == "forward" for inner in node.body
            )
            for node in self._scope
        )
        return not of_module or self._of_library or _trains(loop)

    def _loop(self, loop: _Loop, *, of_turns: bool) -> list[ast.stmt]:
        """`of_turns`: what it goes over is computed by loops of its own."""
        draft = self._draft(loop, loop.body)
        if self._inside and isinstance(loop, ast.For) and not of_turns:
            loop.iter = _at(
                ast.Call(_at(ast.Name(EACH, ast.Load()), loop.iter), [loop.iter], []), loop.iter
            )
        if is_suspended(loop):
            loop.body = with_values_kept(loop.body)
        self._inside += 1
        loop.body = self._behind_continue(loop.body)
        self._inside -= 1
        loop.orelse = [_mark(THROUGH, draft.number, loop), *self.statements(loop.orelse)]
        self._done(draft, loop.body)
        loop.body.insert(0, _mark(BEGIN, draft.number, loop.body[0]))
        return [_left_behind([loop], draft.number, loop)]

    def _behind_continue(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A loop's body. What stands behind `if …: continue` may be a step by itself, too."""
        place = next((number + 1 for number, s in enumerate(body) if _skips(s)), 0)
        rest = body[place:]
        if not place or not _trains_by_itself(rest, loops=True):
            return self.statements(body)
        draft = self._draft(_at(ast.If(ast.Constant(value=True), rest, []), rest[0]), rest)
        before, rest = self.statements(body[:place]), self.statements(rest)
        self._done(draft, rest)
        return [*before, *_between_marks(rest, draft.number)]

    def _draft(self, marked: _Loop | ast.If | _Function, body: list[ast.stmt]) -> _Draft:
        """Takes a number, before those of the loops inside of it are taken."""
        number = len(self._loops.all)
        plain = copy.deepcopy(body)
        rebound, carried = order_of_names(plain)
        target = marked.target if isinstance(marked, (ast.For, ast.AsyncFor)) else None
        targets = _bound_by(marked)
        found = Loop(
            number=number,
            file=self._file,
            line=marked.lineno,
            first=body[0].lineno,
            last=max(statement.end_lineno or statement.lineno for statement in body),
            body=(),
            targets=tuple(targets),
            target=target,
            iterable=marked.iter if isinstance(marked, ast.For) else None,
            scope=tuple(self._scope),
            names=frozenset(_names(marked)),
            rebound=frozenset(rebound),
            carried=frozenset(carried),
            drawn=frozenset(drawn_unseen(plain)),
            backwards=tuple(_calls_of("backward", _every(plain))),
            clears=bool(_calls_of("zero_grad", _every(plain))),
            whole=not isinstance(marked, _LOOPS),
        )
        self._loops.all.append(found)
        self.found.append(found)
        return _Draft(number, len(self.found) - 1)

    def _done(self, draft: _Draft, body: list[ast.stmt], of: Turning | None = None) -> None:
        """The loops inside of it are marked, too."""
        done = replace(self.found[draft.place], body=tuple(copy.deepcopy(body)))
        if of is not None:
            done = replace(done, targets=(*done.targets, *of.outer), in_expression=True)
        self._loops.all[draft.number] = self.found[draft.place] = done


@dataclass(frozen=True, slots=True)
class _Draft:
    """A loop whose body is not marked yet."""

    number: int
    place: int
    """Among the loops of its file."""


def _is_the_models(function: _Function) -> bool:
    return function.name == "forward" or any(
        word in ast.unparse(node) for node in function.decorator_list for word in _COMPILERS
    )


def _is_step(function: _Function) -> bool:
    """It makes a backward pass, and calls `step` outside of its own loops: whoever calls it may be
    the loop of a library."""
    if _is_the_models(function) or any(is_suspended(statement) for statement in function.body):
        return False
    return _trains_by_itself(function.body, loops=False)


def _trains_by_itself(body: list[ast.stmt], *, loops: bool) -> bool:
    """It makes a backward pass and calls `step`; without `loops`, that outside of its own loops."""
    return bool(_calls_of("backward", _own(body))) and bool(
        _calls_of("step", _own(body, loops=loops))
    )


def _skips(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Continue)


def _own(body: Iterable[ast.AST], *, loops: bool = True) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of functions and classes inside of it; without
    `loops`, without those of its loops, too."""
    for node in body:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if not loops and isinstance(node, _LOOPS):
            continue
        yield node
        yield from _own(ast.iter_child_nodes(node), loops=loops)


def _every(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in body:
        yield from ast.walk(node)


def _calls_of(method: str, nodes: Iterable[ast.AST]) -> list[int]:
    """The lines where a method of that name is called."""
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == method
    ]


def _with_marks_imported(body: list[ast.stmt]) -> list[ast.stmt]:
    """The import stands behind the docstring and what is imported from __future__. The names are
    the module's own, so that a function that is sent to another process finds them there."""
    place = 0
    for statement in body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not docstring and getattr(statement, "module", "") != "__future__":
            break
        place += 1
    names = [ast.alias(name, known_as) for name, known_as in NAMES.items()]
    imported = ast.ImportFrom(module="nanodoc.script.marks", names=names, level=0)
    for node in ast.walk(imported):
        node.lineno = node.end_lineno = 1  # type: ignore[attr-defined]  # of statements and aliases
        node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]  # as above
    return [*body[:place], imported, *body[place:]]


def _mark(name: str, number: int, where: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number)], [])
    marked = ast.Expr(call)
    for node in ast.walk(marked):
        _at(node, where)
    # a statement of many lines would make the mark's line its first, which is what is wanted
    marked.end_lineno, marked.end_col_offset = where.lineno, where.col_offset
    return marked


def _between_marks(body: list[ast.stmt], number: int) -> list[ast.stmt]:
    """A function's body between its two marks; its docstring stays in front of them."""
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    docstring, rest = (body[:1], body[1:]) if documented else ([], body)
    if not rest:
        return body
    return [*docstring, _left_behind([_mark(BEGIN, number, rest[0]), *rest], number, rest[0])]


def _left_behind(body: list[ast.stmt], number: int, where: ast.stmt) -> ast.stmt:
    """The statements, and the mark that they are left by, whatever way."""
    mark = _mark(LEFT, number, where)
    around = ast.Try(body=body, handlers=[], orelse=[], finalbody=[mark])
    return ast.copy_location(around, where)


def _at(node: Any, where: ast.AST) -> Any:
    return ast.copy_location(node, where)


def _bound_by(marked: _Loop | ast.If | _Function) -> list[str]:
    """The names that a loop, or a function, binds before its body begins."""
    if isinstance(marked, _FUNCTIONS):
        return [a.arg for a in ast.walk(marked.args) if isinstance(a, ast.arg)]
    if isinstance(marked, (ast.For, ast.AsyncFor)):
        return list(_names(marked.target))
    if isinstance(marked, ast.If):
        return []
    # while (batch := next(batches)) is not None
    return [n.target.id for n in ast.walk(marked.test) if isinstance(n, ast.NamedExpr)]


def _names(target: ast.AST) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def _trains(loop: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _TRAINING_CALLS
        for node in ast.walk(loop)
    )


def _trains_by_name(loop: ast.AST) -> bool:
    """It trains, or calls what may do that."""
    return _trains(loop) or any(
        word in getattr(node.func, "attr", getattr(node.func, "id", "")).lower()
        for node in ast.walk(loop)
        if isinstance(node, ast.Call)
        for word in _TRAINING_WORDS
    )


def _goes_through_optimizers(loop: ast.For) -> bool:
    """Its body does nothing but give each optimizer a closure: a part of a step."""
    calls = [n for statement in loop.body for n in ast.walk(statement) if isinstance(n, ast.Call)]
    own = set(_names(loop.target))
    for statement in loop.body:  # `optimizer = getattr(self, name)`
        if isinstance(statement, ast.Assign) and own & set(_names(statement.value)):
            own.update(name for target in statement.targets for name in _names(target))
    given = False
    for call in calls:
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr == "step":
            if not own & set(_names(function.value)):
                return False
            given |= bool(call.args)
        elif not (isinstance(function, ast.Name) and function.id == "getattr"):
            return False
    return given
