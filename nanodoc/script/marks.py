"""The marks that a marked source calls. They do nothing until a session listens, nor in any other
process, nor where a compiler traces them: it sees a function that returns at once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Protocol

import torch

from nanodoc.script import suspended
from nanodoc.script.loops import Loop
from nanodoc.script.suspended import Suspensions


class Listener(Protocol):
    """Whoever is told of the marks."""

    def begin(self, number: int, frame: FrameType) -> None: ...

    def leave(self, number: int, frame: FrameType | None) -> None: ...

    def through(self, number: int) -> None: ...

    def each(self, values: Any) -> Any: ...

    def turns(self, number: int) -> Loop | None: ...

    def turn(self, number: int, frame: FrameType, bound: Mapping[str, Any]) -> bool: ...

    def suspensions(self) -> Suspensions | None: ...


_listeners: list[Listener] = []


def listen(listener: Listener | None) -> None:
    """The one that is told from now on; None for nobody."""
    _listeners[:] = [] if listener is None else [listener]


def begin(number: int) -> None:
    """An iteration of a loop begins."""
    if torch.compiler.is_compiling() or not _listeners:
        return
    _listeners[0].begin(number, sys._getframe(1))


def left(number: int) -> None:
    """A loop is left, by whatever way."""
    if torch.compiler.is_compiling() or not _listeners:
        return
    _listeners[0].leave(number, sys._getframe(1))


def through(number: int) -> None:
    """A loop has come to its end by itself."""
    if torch.compiler.is_compiling() or not _listeners:
        return
    _listeners[0].through(number)


def each(values: Any) -> Any:
    """What a loop inside a loop goes over."""
    if torch.compiler.is_compiling() or not _listeners:
        return values
    return _listeners[0].each(values)


def turns(number: int, values: Any, outer: Mapping[str, Any]) -> Any:
    """What an expression that is a loop goes over, where somebody wants to know of its iterations;
    `outer` are the variables of expressions around it."""
    if torch.compiler.is_compiling() or not _listeners:
        return values
    loop = _listeners[0].turns(number)
    # drawn from in C code: no frame of ours stands between the expression and its iterable
    return values if loop is None else map(_Turn(loop, outer), values)


class _Turn:
    """Called with each value that goes through."""

    __slots__ = ("_loop", "_outer", "_wanted")

    def __init__(self, loop: Loop, outer: Mapping[str, Any]) -> None:
        self._loop, self._outer = loop, outer
        self._wanted = True

    def __call__(self, value: Any) -> Any:
        if self._wanted and _listeners:
            self._tell(value)
        return value

    def _tell(self, value: Any) -> None:
        frame = self._loop.frame_below(sys._getframe(2))
        if frame is None or hasattr(type(value), "__next__"):
            return
        try:
            bound = self._loop.bound_by(value)
        except (TypeError, ValueError):  # it can't be taken apart, as the script is about to see
            return
        number = self._loop.number
        self._wanted = _listeners[0].turn(number, frame, {**self._outer, **bound})


class _Suspensions:
    """What a loop's `yield` or `await` calls, before it and with its value; an iteration that is
    run again has the others in its place."""

    again = staticmethod(suspended.again)
    refused = staticmethod(suspended.refused)

    def before(self) -> Any:
        found = _listening()
        return found.before(sys._getframe(1).f_code) if found is not None else None

    def after(self, before: Any, value: Any) -> Any:
        found = _listening() if before is not None else None
        if found is not None:
            found.after(before, value)
        return value

    def is_given(self) -> bool:
        found = _listening()
        return found is not None and found.is_given()

    def given(self) -> Any:
        found = _listening()
        return found.given() if found is not None else None


def _listening() -> Suspensions | None:
    if torch.compiler.is_compiling() or not _listeners:
        return None
    return _listeners[0].suspensions()


suspensions = _Suspensions()
