"""Marks in a module that has been imported already: the code of its functions is exchanged for the
same code with marks."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

from nanodoc.script import marks
from nanodoc.script.loops import Loops
from nanodoc.script.marking import NAMES, marked


def mark_imported(module: types.ModuleType, loops: Loops) -> bool:
    """Marks the loops of a module's functions and methods. False where its source is not to be had,
    or is not that of its functions any more."""
    file = getattr(module, "__file__", None)
    if file is None or file in loops.by_file:
        return file is not None
    try:
        source = inspect.getsource(module)
        code = marked(loops, source, file, of_library=True)
    except (OSError, TypeError, SyntaxError):
        return False
    vars(module).update({name: getattr(marks, mark) for mark, name in NAMES.items()})
    codes = {(c.co_qualname, c.co_firstlineno): c for c in _codes(code)}
    found = False
    for function in _functions(module):
        old = function.__code__
        new = codes.get((old.co_qualname, old.co_firstlineno))
        if new is not None and new.co_freevars == old.co_freevars:
            function.__code__ = new
            found = True
    return found


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes(constant)


def _functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Those that the module defines, and the methods of its classes, under their decorators."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for inner in vars(value).values() if isinstance(value, type) else (value,):
            function = inspect.unwrap(inner) if callable(inner) else inner
            if isinstance(function, types.FunctionType):
                yield function
