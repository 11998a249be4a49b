"""What a recipe's functions reach by name: closure cells and globals."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import cache
from types import CodeType
from typing import Any


def variables_of(function: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, the cell or namespace that holds it, value) of every variable a Python function reads
    from outside. An object with a method `reached_variables` tells them itself."""
    told = getattr(type(function), "reached_variables", None)
    if told is not None:
        yield from told(function)
        return
    function = _of_source(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(
        code.co_freevars, getattr(function, "__closure__", None) or (), strict=False
    ):
        try:
            yield name, cell, cell.cell_contents
        except ValueError:  # an empty cell
            continue
    for name in globals_of(code):
        if name in function.__globals__:
            yield name, function.__globals__, function.__globals__[name]


def _of_source(function: Any) -> Any:
    """The function of a method, or the one that torch.compile was given: its own wrapper reads
    torch's variables."""
    function = getattr(function, "__func__", function)
    if getattr(function, "__code__", None) is None:  # a module, compiled or not, is none
        return function
    given = getattr(function, "_torchdynamo_orig_callable", function)
    return getattr(given, "__func__", given)


def code_of(function: Any) -> CodeType | None:
    """The code of a Python function; of an object that tells its variables itself, its
    `body_code`."""
    if hasattr(type(function), "reached_variables"):
        function_code = function.body_code
    else:
        function_code = getattr(_of_source(function), "__code__", None)
    return function_code if isinstance(function_code, CodeType) else None


@cache
def globals_of(code: CodeType) -> tuple[str, ...]:
    """The names that a function's code, or that of a function inside it, looks up as globals.
    `co_names` holds those of attributes as well."""
    names = {
        instruction.argval: None
        for instruction in dis.get_instructions(code)
        if instruction.opname.endswith("_GLOBAL")
    }
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names.update(dict.fromkeys(globals_of(inner)))
    return tuple(names)
