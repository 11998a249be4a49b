"""Functions of the user's that only reckon: asked once more, they leave nothing behind."""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from nanodoc.trace.returned import code_of

_DEEPEST = 3  # functions that call functions
_STORES = ("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF", "STORE_NAME", "IMPORT_NAME")
_MODULES = frozenset(("math", "cmath", "numpy"))  # torch's and random's functions draw
_SURE = frozenset(
    ("abs", "bool", "divmod", "float", "int", "len", "max", "min", "pow", "range", "round", "sum")
)


def only_reckons(function: Any, depth: int = _DEEPEST) -> bool:
    """It stores nothing outside of itself, and calls nothing but arithmetic: Python's, that of
    `math` and NumPy, and functions of the user's of which the same holds. False where its code does
    not tell."""
    code = code_of(function)
    if code is None or not depth or any(isinstance(c, CodeType) for c in code.co_consts):
        return False
    named = _named(getattr(function, "__func__", function))
    owner, called = "", False  # the module that an attribute is taken of, and whether to call it
    steps = list(dis.get_instructions(code))
    for step, behind in itertools.zip_longest(steps, steps[1:]):
        if step.opname.startswith(("DELETE_", "YIELD_")) or step.opname in _STORES:
            return False
        if step.opname in ("LOAD_METHOD", "LOAD_ATTR"):
            if (owner or called or _is_method(step)) and owner not in _MODULES:
                return False
            owner = ""
        elif step.opname in ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME"):
            value = named.get(step.argval)
            read = behind is not None and behind.opname == "LOAD_ATTR" and not _is_method(behind)
            if not (
                _is_harmless(value, depth, read=read)
                if step.argval in named
                else step.argval in _SURE
            ):
                return False
            owner = value.__name__ if isinstance(value, ModuleType) else ""
            called = "NULL" in step.argrepr and not callable(value)
        else:
            owner, called = "", False
    return True


def _named(function: Any) -> dict[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def _is_method(step: dis.Instruction) -> bool:
    """To be called; from Python 3.12 on an attribute with a mark."""
    return step.opname == "LOAD_METHOD" or "NULL|self" in str(step.argrepr)


def _is_harmless(value: Any, depth: int, *, read: bool) -> bool:
    """To be read, or called; `read`: an attribute of it is."""
    if isinstance(value, FunctionType):
        return only_reckons(value, depth - 1)
    if isinstance(value, BuiltinFunctionType):
        return value.__module__ in _MODULES
    plain = isinstance(value, (int, float, str, tuple, list, dict, ModuleType, type(None)))
    # a configuration, whose fields are read: a class of its own may be anything once it is called
    return plain or read or not (callable(value) or isinstance(value, Iterator))
