"""Which line of the user's code first held a bad value: code that is run again is followed line by
line, and every array, tensor and number that goes bad gets the line after which it was so.

A value that was made of one that was bad already has that one's line, through calls, returns and
containers. NumPy's code is followed as well as torch's: what counts is the value that a name holds
when its line is over, so that a division by zero which `where` repairs in the same line is none.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.utils.data import TensorDataset

from nanodoc.facts.source import SourceSpan
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.files import USER, frame_kind, line_span, shown_path
from nanodoc.trace.statements import Statement, statements_of

_CONTAINERS = (list, tuple, dict, TensorDataset)
_MOST_ITEMS = 32
_DEPTH = 3
# elements: a value as large is read again only where a statement may have changed it
_LARGE = 1 << 16


class OutOfTime(BaseException):
    """The code that is followed took too long."""


@dataclass(frozen=True, slots=True)
class FirstLine:
    """Where a value went bad. `line` is None where it was so before the user's code first named
    it; `name` is the name that held it then."""

    line: SourceSpan | None
    name: str


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a function of the user's that is under way."""

    statement: Statement | None = None
    before: dict[str, tuple[Any, int]] = field(default_factory=dict)
    """Name to its value, and how many elements of it were bad, before the statement ran."""
    leaving: tuple[Statement, dict[str, tuple[Any, int]]] | None = None
    """The return statement that has run, with what was before it; the heads of the `with` blocks
    around it run after it."""
    returned: FirstLine | None = None
    """Of the last bad value that a function called by the statement gave back."""
    runs: Counter[int] = field(default_factory=Counter)
    """How often each statement has run, by its line."""


class FirstLines:
    """Follows the main thread's user code while it is open. After `seconds` that code is left by
    `OutOfTime`.

    `badness` says of a tensor, an array or a number how many of its elements are bad.
    """

    def __init__(self, badness: Callable[[Any], int], seconds: float) -> None:
        self._badness = badness
        self._seconds = seconds
        self._until = 0.0
        self._lines: dict[int, tuple[Any, FirstLine]] = {}  # the value is kept: its id stays its
        self._memory: dict[int, FirstLine] = {}  # of values that are kept, by their address
        self._reads: dict[tuple[str, int], tuple[FirstLine, Statement, str]] = {}
        self._read: dict[int, tuple[Any, int]] = {}
        self._stack: list[_Call] = []
        self._bound: dict[int, tuple[weakref.ref[Any], FirstLine, Statement]] = {}
        """Arrays and tensors, bad or not: the line that gave each its last name."""
        self._makers: dict[FirstLine, tuple[_Call, Statement, list[FirstLine]]] = {}

    def __enter__(self) -> FirstLines:
        self._until = time.monotonic() + self._seconds
        self._former = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.settrace(self._former)
        self._read.clear()

    def of(self, value: Any) -> FirstLine | None:
        """The first line of a value that is bad, or of what it holds; None where nothing is
        known."""
        if isinstance(value, _CONTAINERS):
            for item in _items(value):
                if (line := self.of(item)) is not None:
                    return line
        known = self._lines.get(id(value))
        if known is None and (memory := _memory_of(value)) is not None:
            return self._memory.get(memory)
        return known[1] if known is not None else None

    def of_any(self) -> bool:
        """Anything bad was met."""
        return bool(self._lines)

    def read_at(self, place: SourceSpan) -> tuple[FirstLine, str] | None:
        """The first line of the bad value that a statement read, and the name it read it by; None
        where it read none."""
        for (file, _), (line, statement, name) in self._reads.items():
            inside = statement.line <= place.line <= statement.end_line
            if inside and shown_path(file) == place.file:
                return line, name
        return None

    def factor_of(self, line: FirstLine) -> FirstLine | None:
        """Where the line has run again and again, and reads one array that stays what it is: where
        this was made, and its name."""
        if line not in self._makers:
            return None
        call, statement, factors = self._makers[line]
        if call.runs[statement.line] < 2 or len(factors) != 1:
            return None
        return factors[0]

    # -- the trace function ------------------------------------------------------------------------

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if (
            frame_kind(frame.f_code.co_filename) != USER
            or threading.current_thread() is not threading.main_thread()
        ):
            return None
        call = _Call()
        self._stack.append(call)

        def traced(frame: FrameType, event: str, arg: Any) -> Any:
            if time.monotonic() > self._until:
                sys.settrace(None)
                raise OutOfTime
            if event == "line":
                self._line(call, frame)
            elif event == "return":
                self._returned(call, frame, arg)
            return traced

        return traced

    def _line(self, call: _Call, frame: FrameType) -> None:
        statement = statements_of(frame.f_code.co_filename).get(frame.f_lineno)
        if (
            statement is call.statement
            and statement is not None
            and frame.f_lineno > statement.line
        ):
            return  # a later line of the same statement
        self._settle(call, frame)
        if call.statement is not None and call.statement.returns:
            call.leaving = call.statement, call.before
        call.statement = statement
        if call.leaving is None:
            call.returned = None
        call.before = {}
        if statement is None:
            return
        for name in statement.names:
            value = _value(frame, name)
            bad = self._bad(value)
            call.before[name] = (value, bad)
            if not bad:
                continue
            line = self.of(value)
            if line is None and isinstance(value, float):
                continue  # NaN by its name: whoever writes it makes it
            if line is None:
                line = FirstLine(None, name)
                self._note(value, line)
            self._reads[frame.f_code.co_filename, statement.line] = line, statement, name

    def _settle(self, call: _Call, frame: FrameType) -> None:
        """What the statement that has just run made bad."""
        statement = call.statement
        if statement is None:
            return
        call.runs[statement.line] += 1
        code = frame.f_code
        for name in statement.names:
            value = _value(frame, name)
            old, before = call.before.get(name, (None, 0))
            changed = name in statement.bound
            if changed and value is not old and _is_array(value):
                line = line_span(code.co_filename, statement.line, code.co_qualname)
                self._bound[id(value)] = (weakref.ref(value), FirstLine(line, name), statement)
            if value is old and not changed:
                continue
            bad = self._bad(value, anew=changed)
            new = bad > before if value is old else bad and id(value) not in self._lines
            if new:
                self._note(value, self._source(call, frame, statement, value, name))

    def _source(
        self, call: _Call, frame: FrameType, statement: Statement, made: Any, name: str
    ) -> FirstLine:
        """Where a value that this statement made bad comes from: what was bad before, what a
        function gave back, or the statement itself. Arrays count before numbers."""
        sources = sorted(
            (value for value, bad in call.before.values() if bad and value is not made),
            key=lambda value: isinstance(value, (int, float)),
        )
        lines = [line for value in sources if (line := self.of(value)) is not None]
        if lines:
            return lines[0]
        if call.returned is not None:
            return call.returned
        code = frame.f_code
        here = line_span(code.co_filename, statement.line, code.co_qualname)
        line = FirstLine(here, name)
        self._makers.setdefault(line, (call, statement, self._factors(frame, statement)))
        return line

    def _factors(self, frame: FrameType, statement: Statement) -> list[FirstLine]:
        """The arrays and tensors that a statement reads and that another one has made: that one's
        line, and the name that it gave."""
        values = (_value(frame, name) for name in statement.names)
        known = (self._bound.get(id(value)) for value in values if _is_array(value))
        return [
            line
            for value, line, made in filter(None, known)
            if value() is not None and made is not statement
        ]

    def _returned(self, call: _Call, frame: FrameType, value: Any) -> None:
        if call.statement is not None:
            self._settle(call, frame)
        statement = call.statement
        if call.leaving is not None:
            statement, call.before = call.leaving
        if call in self._stack:
            del self._stack[self._stack.index(call) :]
        bad = self._bad(value) if value is not None else 0
        if not bad:
            return
        line = self.of(value)
        if line is None and statement is not None:
            line = self._source(call, frame, statement, value, "the value returned")
            self._note(value, line)
        if self._stack and line is not None:
            self._stack[-1].returned = line

    # -- values ------------------------------------------------------------------------------------

    def _note(self, value: Any, line: FirstLine) -> None:
        self._lines[id(value)] = (value, line)
        if isinstance(value, _CONTAINERS):  # what is taken out of it later has the same line
            for item in _items(value):
                if self._bad(item, 1) and self.of(item) is None:
                    self._note(item, line)
        memory = _memory_of(value)
        if memory is not None:
            self._memory.setdefault(memory, line)

    def _bad(self, value: Any, depth: int = 0, *, anew: bool = False) -> int:
        if isinstance(value, (str, bytes, type(None), type)):
            return 0
        if isinstance(value, _CONTAINERS):
            if depth == _DEPTH:
                return 0
            return sum(self._bad(item, depth + 1, anew=anew) for item in _items(value))
        known = self._read.get(id(value))
        if known is not None and not anew:
            return known[1]
        bad = self._badness(value)
        if _is_large(value):
            self._read[id(value)] = (value, bad)
        return bad


def _is_array(value: Any) -> bool:
    return bool(getattr(value, "ndim", None))


def _memory_of(value: Any) -> int | None:
    """The address of the memory that a tensor or an array lies in: a view of it, or a tensor made
    of an array, has the same."""
    if isinstance(value, torch.Tensor):
        return value.untyped_storage().data_ptr() or None if is_plain(value) else None
    if type(value).__module__ != "numpy" or not hasattr(value, "__array_interface__"):
        return None
    while type(getattr(value, "base", None)).__module__ == "numpy":
        value = value.base
    return int(value.__array_interface__["data"][0]) or None


def _is_large(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() >= _LARGE
    size = getattr(value, "size", 0)
    return type(size) is int and size >= _LARGE


def _items(value: Any) -> list[Any]:
    """Some of what a container holds: the first, and the last."""
    items = list(value.values()) if isinstance(value, dict) else value
    items = items.tensors if isinstance(items, TensorDataset) else items
    return [*items[:_MOST_ITEMS], *items[_MOST_ITEMS:][-_MOST_ITEMS:]]


def _value(frame: FrameType, name: str) -> Any:
    """What a dotted name holds in a frame; None where it holds nothing. No code of the user's
    runs: attributes are read from where they are stored."""
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for attribute in rest:
        try:
            value = object.__getattribute__(value, "__dict__").get(attribute)
        except (AttributeError, TypeError):
            return None
    return value
