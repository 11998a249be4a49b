"""What a recipe's functions reach by name: closure cells and globals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def variables_of(function: Any) -> Iterator[tuple[str, Any, Any]]:
    """(name, the cell or namespace that holds it, value) of every variable a Python function reads
    from outside."""
    function = getattr(function, "__func__", function)
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
    for name in code.co_names:
        if name in function.__globals__:
            yield name, function.__globals__, function.__globals__[name]
