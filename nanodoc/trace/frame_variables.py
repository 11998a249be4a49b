"""The variables of a function that runs, read so that the function itself sees no difference.

Up to Python 3.12 `locals()` and a frame's `f_locals` are one dict, which every reading fills anew:
a script that has kept `config = locals()` would find in it what its loop has bound since.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FrameType, ModuleType
from typing import Any

from nanodoc.trace.files import USER, frame_kind

_POINTER = ctypes.sizeof(ctypes.c_void_p)
_OF_FRAME = 3 * _POINTER
"""Where a frame points to what the interpreter runs: behind the head of an object and `f_back`."""
_LOCALS = {(3, 11): 3, (3, 12): 5}
"""The number of the field that holds the dict, in `_PyInterpreterFrame` of CPython."""
_BEFORE_VARIABLES = 9 * _POINTER
"""Of the same struct, whose last field they are."""
_NOT_HELD = 3  # references: the frame, a variable here, and the argument of getrefcount


def variables_of_frame(frame: FrameType) -> dict[str, Any]:
    """A new dict of the variables that the frame holds now. What the function got by `locals()`
    stays as it is."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED or not _PLACE:  # a namespace, or a snapshot
        return dict(frame.f_locals)
    if sys.gettrace() is not None or sys.getprofile() is not None:
        # what is in the dict then is written back into the function when the call is over
        return dict(frame.f_locals)
    kept = _kept(frame)
    before = dict(kept) if kept is not None and sys.getrefcount(kept) > _NOT_HELD else None
    filled = frame.f_locals
    variables = dict(filled)
    if before is not None and filled is kept:
        filled.clear()
        filled.update(before)
    elif kept is None or filled is kept:
        # it would hold a loss and its graph until it is read again
        filled.clear()
    return variables


def users_frames() -> Iterator[FrameType]:
    """The frames that run the user's code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame_kind(frame.f_code.co_filename) == USER:
            yield frame
        frame = frame.f_back


def names_in(frame: FrameType) -> dict[str, Any]:
    """What the names in a frame's code stand for: its variables, and the global ones."""
    known = frame.f_globals
    of_module = {name: known[name] for name in frame.f_code.co_names if name in known}
    return {**of_module, **variables_of_frame(frame)}


class SomeVariables:
    """Reads a few variables of the frames of one code, at every step of a training: in less time
    than all of them take."""

    def __init__(self, code: CodeType, names: Iterable[str]) -> None:
        """`names`: those that are no variables of the code's own are left out."""
        wanted = frozenset(names)
        inner = wanted.intersection((*code.co_cellvars, *code.co_freevars))
        self._whole = not _VARIABLES or bool(inner) or not code.co_flags & inspect.CO_OPTIMIZED
        self._places = [
            (name, _VARIABLES + number * _POINTER)
            for number, name in enumerate(code.co_varnames)
            if name in wanted
        ]

    def of(self, frame: FrameType) -> dict[str, Any]:
        """Those that are bound by now, or all; in a new dict. The frame has to run."""
        if self._whole:
            return variables_of_frame(frame)
        running: int = ctypes.c_void_p.from_address(id(frame) + _OF_FRAME).value or 0
        found = {}
        for name, place in self._places:
            try:
                found[name] = ctypes.py_object.from_address(running + place).value
            except ValueError:  # not bound
                continue
        return found


def _kept(frame: FrameType) -> dict[str, Any] | None:
    """The dict that the frame holds, as it was filled last."""
    running = ctypes.c_void_p.from_address(id(frame) + _OF_FRAME).value
    if not running:
        return None
    held = ctypes.c_void_p.from_address(running + _PLACE)
    return ctypes.cast(held, ctypes.py_object).value if held.value else None


def _place() -> int:
    """0 where no such dict is shared, or this Python lays a frame out otherwise."""
    field = _LOCALS.get(sys.version_info[:2])
    if field is None or sys.implementation.name != "cpython":
        return 0
    if hasattr(sys, "getobjects"):  # a build whose objects have a longer head
        return 0
    place = field * _POINTER
    own = locals()
    frame = sys._getframe()
    running = ctypes.c_void_p.from_address(id(frame) + _OF_FRAME).value
    if not running:
        return 0
    return place if ctypes.c_void_p.from_address(running + place).value == id(own) else 0


_PLACE = _place()


def _variables() -> int:
    """Where the variables of a running function begin, one pointer for each of `co_varnames`; 0
    where this Python lays a frame out otherwise."""
    if not _PLACE:
        return 0
    first, last = object(), object()
    frame = sys._getframe()
    names = frame.f_code.co_varnames
    running = ctypes.c_void_p.from_address(id(frame) + _OF_FRAME).value
    if not running:
        return 0
    place = _BEFORE_VARIABLES
    for name, value in (("first", first), ("last", last), ("frame", frame)):
        at = running + place + names.index(name) * _POINTER
        if ctypes.c_void_p.from_address(at).value != id(value):
            return 0
    return place


_VARIABLES = _variables()


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object has in its `__dict__`; nothing of classes and modules, and of objects that
    refuse: a proxy resolves what it stands for, and may raise."""
    if isinstance(value, (type, ModuleType)):
        return {}
    with suppress(Exception):
        inner = getattr(value, "__dict__", None)
        return dict(inner) if type(inner) is dict else {}
    return {}
