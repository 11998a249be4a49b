"""The loops of a script's source, and the source with a mark at the start of every loop's body and
one behind every loop. Line and column numbers stay as they are; nothing is written to disk."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

BEGIN, LEFT, EACH = "__nanodoc_begin__", "__nanodoc_left__", "__nanodoc_each__"
"""The names of the marks: at the start of an iteration, behind a loop, around an inner loop's
iterable."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Loop = ast.For | ast.While
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_TRAINING_CALLS = {"backward", "step", "zero_grad"}
_OWN_METHODS = ("send", "throw", "__next__")
# they draw from an iterator in C code
_CONSUMERS = {
    *("list", "tuple", "set", "dict", "frozenset", "sorted", "sum", "min", "max", "any", "all"),
    *("zip", "map", "filter", "enumerate", "islice", "chain", "from_iterable", "cycle", "deque"),
    *("takewhile", "dropwhile", "stack", "cat", "array", "fromiter", "join", "extend", "update"),
}
# a compiler traces into functions decorated by these, and into what they call
_COMPILERS = ("compile", "jit", "script")


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """One loop of a file. `body` is its marked body, without its own mark; `scope` are the classes
    and functions around it, outermost first."""

    number: int
    file: str
    line: int
    first: int
    last: int
    """The lines of its body."""
    body: tuple[ast.stmt, ...]
    targets: tuple[str, ...]
    """The names that the loop itself binds."""
    scope: tuple[ast.AST, ...]
    names: frozenset[str]
    """Every name that its body mentions."""
    rebound: frozenset[str]
    """Names that the body binds before it reads them: their old values matter to nobody."""
    carried: frozenset[str]
    """Names that the body reads first and binds later."""
    iterable: ast.expr | None = None
    """What it goes over."""
    target: ast.expr | None = None
    """What the loop itself binds."""
    drawn: frozenset[str] = frozenset()
    """Names that it draws from where no mark is, if they are iterators."""
    backwards: tuple[int, ...] = ()
    """The lines where it calls backward()."""

    def backward_outside(self, inner: Loop) -> bool:
        """It makes backward passes besides those of a loop inside it."""
        return inner.file == self.file and any(
            not inner.first <= line <= inner.last for line in self.backwards
        )

    @property
    def function(self) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The function that it is a part of."""
        return next((node for node in reversed(self.scope) if isinstance(node, _FUNCTIONS)), None)

    def bound_by(self, value: Any) -> dict[str, Any]:
        """The names that the loop binds to `value`. Raises `ValueError` or `TypeError` where that
        cannot be taken apart as the loop says."""
        return _bound(self.target, value) if self.target is not None else {}

    def runs_in(self, code: CodeType) -> bool:
        """The code object is that of the loop's function, or of its module."""
        function = self.function
        if function is None:
            return code.co_name == "<module>"
        # decorators move co_firstlineno to the first of them
        first = min([function.lineno, *(node.lineno for node in function.decorator_list)])
        return code.co_name == function.name and code.co_firstlineno == first


@dataclass(slots=True)
class Loops:
    """Every loop of the marked files, by number and by file."""

    all: list[Loop] = field(default_factory=list)
    by_file: dict[str, list[Loop]] = field(default_factory=dict)

    def marked(self, source: str | bytes, file: str) -> CodeType:
        """The source compiled with marks. Raises `SyntaxError` as compile() does."""
        tree = ast.parse(source, file)
        marker = _Marker(self, file)
        tree.body = _with_marks_imported(marker.statements(tree.body))
        self.by_file[file] = marker.found
        return compile(tree, file, "exec", dont_inherit=True)

    def running_in(self, frame: FrameType, line: int | None = None) -> list[Loop]:
        """The loops of a frame whose bodies hold its line, innermost first."""
        code = frame.f_code
        at = frame.f_lineno if line is None else line
        return [
            loop
            for loop in reversed(self.by_file.get(code.co_filename, []))
            if loop.first <= at <= loop.last and loop.runs_in(code)
        ]

    def innermost(self, frame: FrameType | None) -> Loop | None:
        """The innermost loop that runs in the frame, or in those that called it."""
        while frame is not None:
            for loop in self.running_in(frame):
                return loop
            frame = frame.f_back
        return None

    def headed_by(self, frame: FrameType, line: int) -> Loop | None:
        """The loop whose header the frame is in: it is drawing its next value."""
        found = self.by_file.get(frame.f_code.co_filename, [])
        return next((o for o in found if o.line == line and o.runs_in(frame.f_code)), None)


class _Marker:
    """Marks the statements of one file."""

    def __init__(self, loops: Loops, file: str) -> None:
        self._loops = loops
        self._file = file
        self._scope: list[ast.AST] = []
        self._inside = 0
        self.found: list[Loop] = []

    def statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        marked: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, (ast.For, ast.While)) and self._wanted(statement):
                marked += self._loop(statement)
            else:
                self._within(statement)
                marked.append(statement)
        return marked

    def _within(self, statement: ast.AST) -> None:
        scoped = isinstance(statement, (*_FUNCTIONS, ast.ClassDef))
        if scoped:
            self._scope.append(statement)
            outside, self._inside = self._inside, 0
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(statement, name, self.statements(inner))
        for handler in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            handler.body = self.statements(handler.body)
        if scoped:
            self._scope.pop()
            self._inside = outside

    def _wanted(self, loop: _Loop) -> bool:
        """Loops in forward() and in compiled functions are the model's. A helper of a module's may
        be called from there: only what trains is marked in such a class."""
        function = next((n for n in reversed(self._scope) if isinstance(n, _FUNCTIONS)), None)
        if any(isinstance(node, _SUSPENDING) for node in ast.walk(loop)):
            return False  # a body that is suspended halfway is no function
        if function is None:
            return True
        if function.name == "forward" or any(
            word in ast.unparse(node) for node in function.decorator_list for word in _COMPILERS
        ):
            return False
        of_module = any(
            isinstance(node, ast.ClassDef)
            and any(
                isinstance(inner, _FUNCTIONS) and inner.name == "forward" for inner in node.body
            )
            for node in self._scope
        )
        return not of_module or _trains(loop)

    def _loop(self, loop: _Loop) -> list[ast.stmt]:
        number = len(self._loops.all)
        iterable = loop.iter if isinstance(loop, ast.For) else None
        if self._inside and isinstance(loop, ast.For):
            loop.iter = _at(
                ast.Call(_at(ast.Name(EACH, ast.Load()), loop.iter), [loop.iter], []), loop.iter
            )
        head = loop.body[0]
        last = max(statement.end_lineno or statement.lineno for statement in loop.body)
        plain = copy.deepcopy(loop.body)
        # its number is taken before those of the loops inside
        placeholder = Loop(
            number=number,
            file=self._file,
            line=loop.lineno,
            first=head.lineno,
            last=last,
            body=(),
            targets=tuple(_names(loop.target)) if not isinstance(loop, ast.While) else (),
            target=None if isinstance(loop, ast.While) else loop.target,
            iterable=iterable,
            scope=tuple(self._scope),
            names=frozenset(n.id for n in ast.walk(loop) if isinstance(n, ast.Name)),
            rebound=frozenset(),
            carried=frozenset(),
        )
        self._loops.all.append(placeholder)
        self.found.append(placeholder)
        place = len(self.found) - 1
        self._inside += 1
        loop.body = self.statements(loop.body)
        self._inside -= 1
        loop.orelse = self.statements(loop.orelse)
        rebound, carried = _order_of_names(plain)
        done = replace(
            placeholder,
            body=tuple(copy.deepcopy(loop.body)),
            rebound=frozenset(rebound),
            carried=frozenset(carried),
            drawn=frozenset(_drawn_unseen(plain)),
            backwards=tuple(
                node.lineno
                for statement in plain
                for node in ast.walk(statement)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "backward"
            ),
        )
        self._loops.all[number] = self.found[place] = done
        loop.body.insert(0, _mark(BEGIN, number, head))
        around = ast.Try(body=[loop], handlers=[], orelse=[], finalbody=[_mark(LEFT, number, loop)])
        return [_at(around, loop)]


def _with_marks_imported(body: list[ast.stmt]) -> list[ast.stmt]:
    """The import stands behind the docstring and what is imported from __future__. The names are
    the module's own, so that a function that is sent to another process finds them there."""
    place = 0
    for statement in body:
        docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not docstring and getattr(statement, "module", "") != "__future__":
            break
        place += 1
    names = [ast.alias(n, m) for n, m in (("begin", BEGIN), ("left", LEFT), ("each", EACH))]
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


def _at(node: Any, where: ast.AST) -> Any:
    return ast.copy_location(node, where)


def _names(target: ast.AST) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def _bound(target: ast.AST, value: Any) -> dict[str, Any]:
    if isinstance(target, ast.Name):
        return {target.id: value}
    if not isinstance(target, (ast.Tuple, ast.List)):
        return {}
    values = list(value)
    if any(isinstance(inner, ast.Starred) for inner in target.elts):
        return {}
    found: dict[str, Any] = {}
    for inner, part in zip(target.elts, values, strict=True):
        found.update(_bound(inner, part))
    return found


def _trains(loop: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _TRAINING_CALLS
        for node in ast.walk(loop)
    )


def _drawn_unseen(body: list[ast.stmt]) -> set[str]:
    """Names that are drawn from where no mark is: in C code (`list(name)`, `islice(name, 4)`), in a
    comprehension, by an unpacking, by a method of the iterator's own."""
    found: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            drawn: list[ast.AST] = []
            if isinstance(node, ast.comprehension):
                drawn = [node.iter]
            elif isinstance(node, ast.Starred) or (
                isinstance(node, ast.Attribute) and node.attr in ("send", "throw", "__next__")
            ):
                drawn = [node.value]
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                drawn = list(node.args) if called in _CONSUMERS else []
            found.update(inner.id for inner in drawn if isinstance(inner, ast.Name))
    return found


def _order_of_names(body: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """(names bound before they are read, names read first and bound later), as far as the body's
    own statements tell: what a branch binds is not bound for sure."""
    read: set[str] = set()
    bound: set[str] = set()
    maybe: set[str] = set()
    for statement in body:
        loads = {
            n.id
            for n in ast.walk(statement)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        stores = {
            n.id
            for n in ast.walk(statement)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            loads.add(statement.target.id)
        sure = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.With))
        if isinstance(statement, ast.With):
            inner, _ = _order_of_names(statement.body)
            loads -= inner
        read |= loads - bound
        if sure:
            bound |= stores - read
        maybe |= stores
    return bound, read & maybe
