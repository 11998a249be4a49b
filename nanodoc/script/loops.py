"""The loops of a script's source, found by number, by file and by the frames that run them."""

from __future__ import annotations

import ast
import dis
from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OF_EXPRESSIONS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>")
_DRAWS = dis.opmap["FOR_ITER"]


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """One loop of a file, or a function or a branch that is a step by itself. `body` is its marked
    body, without its own mark; `scope` are the classes and functions around it, outermost first."""

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
    """Every name that it mentions."""
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
    clears: bool = False
    """It calls zero_grad()."""
    whole: bool = False
    """It is no loop: it is the body of a function that makes a backward pass and a step, and that
    somebody else's loop calls, or a branch of a loop's body that does."""
    in_expression: bool = False
    """It is a comprehension, a generator expression or a `map`."""

    @property
    def counted_by(self) -> tuple[str, ...]:
        """Names whose numbers may be others in each of its runs. What stands around a function or a
        branch binds some that it only reads."""
        return (*self.targets, *(self.names if self.whole else self.carried))

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

    def draws_in(self, trace: TracebackType) -> bool:
        """The entry of a traceback, of a frame that runs it, says that its next value was drawn, by
        an expression whose lines are those of its body."""
        if not self.in_expression:
            return False
        inner = trace.tb_next
        if inner is not None and inner.tb_frame.f_code.co_name in _OF_EXPRESSIONS:
            trace, inner = inner, inner.tb_next
        if trace.tb_frame.f_code.co_code[trace.tb_lasti] == _DRAWS:
            return True
        return inner is not None and inner.tb_frame.f_code.co_name == "__next__"  # by `map`

    def frame_below(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame, of this one and those that called it, that runs the loop's function;
        a generator may outlive it."""
        while frame is not None:
            if frame.f_code.co_filename == self.file and self.runs_in(frame.f_code):
                return frame
            frame = frame.f_back
        return None

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
        """The innermost loop that runs in the frame, or in those that called it; the innermost step
        function where no loop does."""
        whole: Loop | None = None
        while frame is not None:
            for loop in self.running_in(frame):
                if not loop.whole:
                    return loop
                whole = whole or loop
            frame = frame.f_back
        return whole

    def headed_by(self, frame: FrameType, line: int) -> Loop | None:
        """The loop whose header the frame is in: it is drawing its next value."""
        found = self.by_file.get(frame.f_code.co_filename, [])
        return next(
            (o for o in found if o.line == line and not o.whole and o.runs_in(frame.f_code)), None
        )


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
