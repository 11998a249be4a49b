"""torch, numpy and the standard library as they were before the script.

A script may replace functions and methods of these libraries (`torch.Tensor.to = mine`). The
script's own code must get its replacement. nanodoc's code must not: a replacement may draw random
numbers, count its calls or change what it is given. So the process is on one of two sides. On the
script's side its replacements are in place; on nanodoc's side they are taken out and the originals
are there. `ours` and `theirs` mark functions of one side; in `their_side` the training's code runs
again. As long as the script has replaced nothing, a change of sides costs two function calls.

What the script replaces in the middle of a step is noticed at the start of the next one.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import operator
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.utils.data

_F = TypeVar("_F", bound=Callable[..., Any])
_ABSENT: Any = object()
"""The attribute is inherited, or not there at all."""
_PAUSE = 0.05
"""Seconds between two looks for replacements. One look compares about 2 000 names and takes about
80 µs, so looks take less than 0.2 % of the time."""
OF_TENSORS = vars(torch.Tensor)
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# the clock as it is before the script
_now = time.perf_counter


def _owners() -> Iterator[Any]:
    yield from (torch.Tensor, torch, torch.nn.functional, torch.linalg, torch.fft, torch.special)
    yield from (torch.autograd, torch.random, torch.nn.init, torch.nn.utils)
    yield from (torch.nn.Module, torch.optim.Optimizer, torch.Generator)
    yield from (copy, math, os, os.path, random, time)
    for name in ("numpy", "numpy.random"):
        if name in sys.modules:  # what the script imports first, it imports whole
            yield sys.modules[name]


class _Bound:
    """The public functions of one module or class, as they were when this object was made."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        own, whole = vars(owner), dir(owner) if isinstance(owner, type) else vars(owner)
        self._names = tuple(
            name for name in whole if _is_asked_for(name) and callable(getattr(owner, name, None))
        )
        self._values = [own.get(name, _ABSENT) for name in self._names]
        self._inherited = {name: getattr(owner, name) for name in self._names if name not in own}

    def differs(self, name: str, value: Any) -> bool:
        """`value` is another one than the name held."""
        return name in self._names and value is not self._values[self._names.index(name)]

    def changed(self) -> Iterator[tuple[str, Any]]:
        """The names that hold something of the script's now, each with what it held."""
        own = vars(self.owner)
        now = map(own.get, self._names, itertools.repeat(_ABSENT))
        differing = map(operator.is_not, now, self._values)
        for place in itertools.compress(itertools.count(), differing):
            name, before = self._names[place], self._values[place]
            value = own.get(name, _ABSENT)
            if value is self._inherited.get(name, _ABSENT) or _is_tap(value):
                continue
            if _is_torchs(value):  # as torch._dynamo replaces torch.manual_seed when it is imported
                self._values[place] = value
            else:
                yield name, before


def _is_torchs(value: Any) -> bool:
    """A function that is written in a file of torch's own, as are all that it wraps."""
    while value is not None:
        code = getattr(value, "__code__", None)
        if code is None or not code.co_filename.startswith(_TORCH):
            return False
        value = getattr(value, "__wrapped__", None)
    return True


def _is_asked_for(name: str) -> bool:
    """Public names, and the methods that operators call."""
    if not name.startswith("_"):
        return True
    return name.endswith("__") and name not in (
        *("__class__", "__init__", "__new__", "__dict__", "__doc__", "__module__", "__weakref__"),
        *("__init_subclass__", "__subclasshook__", "__getattribute__", "__getattr__"),
        *("__setattr__", "__delattr__", "__torch_function__", "__torch_dispatch__"),
        *("__loader__", "__spec__", "__builtins__", "__build_class__", "__import__"),
    )


class _Sides:
    """Which side the process is on, and what the script has replaced."""

    def __init__(self) -> None:
        self.replaced = False
        """The script has replaced something."""
        self.ours = False
        """nanodoc's code runs, with the originals in place."""
        self.outer = False
        """The side that the innermost function marked with `ours` was called from."""
        self.thread = threading.get_ident()
        self._bound: list[_Bound] = []
        self._known: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        """(owner, name, the original) of everything that the script has ever replaced."""
        self._theirs: dict[tuple[int, str], Any] = {}
        """What the script had in these places, while the originals are there."""
        self._looked = 0.0
        self.size = len(OF_TENSORS)
        """Of `OF_TENSORS`, when they were last looked at."""

    @property
    def are_two(self) -> bool:
        """The script has replaced something, so that the sides differ. A method that tensors
        inherit from C, as most, is noticed here at once; the rest by `look`."""
        if len(OF_TENSORS) != self.size:
            self.look(at_once=True)
        return self.replaced

    def bind(self) -> None:
        """Remembers everything as it is now. Called before the script starts, in its thread."""
        self.thread = threading.get_ident()
        self._bound = [_Bound(owner) for owner in _owners()]

    def look(self, *, at_once: bool = False) -> None:
        """Notices what the script has replaced since the last look."""
        if self.ours or not self._bound or threading.get_ident() != self.thread:
            return
        now = _now()
        if now - self._looked < _PAUSE and not at_once:
            return
        self._looked, self.size = now, len(OF_TENSORS)
        for bound in self._bound:
            for name, original in bound.changed():
                self._known[id(bound.owner), name] = bound.owner, name, original
        self.replaced = bool(self._known)

    def change(self, ours: bool) -> bool:
        """Goes to one side; returns the side before. In other threads of the script its own
        functions stay in use."""
        before = self.ours
        if before is ours or threading.get_ident() != self.thread:
            return before
        self.ours = ours
        if ours:
            alone = threading.active_count() == 1
            for key, (owner, name, original) in self._known.items():
                value = vars(owner).get(name, _ABSENT)
                self._theirs[key] = value
                if value is not original:
                    other = original if alone else self._of_thread(owner, name, original, value)
                    _set(owner, name, other)
        else:
            for key, value in self._theirs.items():
                owner, name, original = self._known[key]
                if value is not original:
                    _set(owner, name, value)
            self._theirs.clear()
        return before

    def _of_thread(self, owner: Any, name: str, original: Any, theirs: Any) -> Any:
        """The original in this thread, and what the script has put there in its other threads."""
        if original is _ABSENT:
            original = getattr(owner.__mro__[1], name)
        if theirs is _ABSENT or not callable(theirs) or not callable(original):
            return theirs
        home = self.thread

        def function(*args: Any, **kwargs: Any) -> Any:
            return (original if threading.get_ident() == home else theirs)(*args, **kwargs)

        return functools.update_wrapper(function, original)

    def is_replaced(self, owner: Any, name: str, value: Any) -> bool:
        """`value` is not what stood there before the script."""
        return any(bound.owner is owner and bound.differs(name, value) for bound in self._bound)

    def original_of(self, function: Any) -> Any:
        """What `function`, which the script has put there, stands in the place of; other functions
        as they are."""
        for owner, name, original in self._known.values():
            if self.get(owner, name) is function:
                return getattr(owner.__mro__[1], name) if original is _ABSENT else original
        return function

    def get(self, owner: Any, name: str) -> Any:
        """What the script finds there itself, not by inheritance; `ABSENT` for nothing."""
        return self._theirs.get((id(owner), name), vars(owner).get(name, _ABSENT))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Puts `value` there for the script; `ABSENT` takes away what is there."""
        if (id(owner), name) in self._theirs:
            self._theirs[id(owner), name] = value
        else:
            _set(owner, name, value)


def _set(owner: Any, name: str, value: Any) -> None:
    if value is not _ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _is_tap(value: Any) -> bool:
    """A wrapper of nanodoc's around the original."""
    tap = getattr(value, "__nanodoc_tap__", None)
    return tap is not None and tap.wrapper is value and not tap.over_replaced


SIDES = _Sides()
ABSENT = _ABSENT


class _TheirSide:
    """A context manager that may be entered several times, also within itself."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(SIDES.change(False))

    def __exit__(self, *exc: object) -> None:
        SIDES.change(self._before.pop())


def their_side() -> _TheirSide:
    """Inside, the training's code runs: what it has replaced is in place."""
    return _TheirSide()


def ours(function: _F) -> _F:
    """A function of nanodoc's that the training's code calls, or torch on its behalf."""
    return _of_side(function, True)


def theirs(function: _F) -> _F:
    """A function of the training's that nanodoc's code calls."""
    return _of_side(function, False)


def _of_side(function: _F, side: bool) -> _F:
    def called(*args: Any, **kwargs: Any) -> Any:
        if not SIDES.are_two or threading.get_ident() != SIDES.thread:
            return function(*args, **kwargs)
        outer, before = SIDES.outer, SIDES.change(side)
        SIDES.outer = before
        try:
            return function(*args, **kwargs)
        finally:
            SIDES.outer = outer
            SIDES.change(before)

    return functools.update_wrapper(called, function)  # type: ignore[return-value]  # the same signature


def of_function_mode(method: _F) -> _F:
    """`__torch_function__` of a mode of nanodoc's. torch looks the function that it hands to a mode
    up by its name, so it may be the script's replacement, which is running already and has called
    the original: the mode is given the original."""

    def called(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not SIDES.are_two:
            return method(mode, func, types, args, kwargs)
        return sided(mode, SIDES.original_of(func), types, args, kwargs)

    sided = ours(method)
    return functools.update_wrapper(called, method)  # type: ignore[return-value]  # as above


def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, which a mode was given to call, on the side that the mode was
    called from."""
    if not SIDES.replaced or threading.get_ident() != SIDES.thread:
        return function(*args, **kwargs)
    before = SIDES.change(SIDES.outer)
    try:
        return function(*args, **kwargs)
    finally:
        SIDES.change(before)
