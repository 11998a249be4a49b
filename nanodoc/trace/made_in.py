"""Which functions of the user's made a training, as far as names tell."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

from nanodoc.trace.files import USER, absolute, frame_kind

_MOST = 200  # functions

Scopes = set[tuple[str, int]]
"""(file, first line) of functions; line 0 for a module."""


def making_scopes(makers: Iterable[tuple[CodeType, dict[str, Any]]]) -> Scopes:
    """Those of functions that made the training, each with its globals, of all that they call by a
    name, and of the classes that they name."""
    found: Scopes = set()
    waiting = [*makers]
    while waiting and len(found) < _MOST:
        code, values = waiting.pop()
        if own_scope(code) in found or frame_kind(code.co_filename) != USER:
            continue
        found.add(own_scope(code))
        waiting += [(c, values) for c in code.co_consts if isinstance(c, CodeType)]
        for name in set(code.co_names) & values.keys():
            value = values[name]
            functions = vars(value).values() if isinstance(value, type) else [value]
            for function in functions:
                if isinstance(function, FunctionType):
                    waiting.append((function.__code__, function.__globals__))
    return found


def own_scope(code: CodeType) -> tuple[str, int]:
    """A function's or module's own."""
    line = 0 if code.co_name == "<module>" else code.co_firstlineno
    return absolute(code.co_filename), line
