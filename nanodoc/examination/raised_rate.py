"""Which line gives the highest learning rate of a run, where a schedule raised it above the one
that the optimizer was given: the function of the schedule is asked again, and followed."""

from __future__ import annotations

import ast
import contextlib
import dis
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import nodes_of
from nanodoc.trace.returned import code_of

RAISED = 1.5
"""Times the rate that was given: more is no rounding."""
_SAME = 1e-6  # relative
_STORES = frozenset(
    ("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR")
)
_TRACES = frozenset(
    {
        *("print", "open", "write", "append", "extend", "update", "pop", "insert", "remove"),
        *("add", "send", "next", "input", "exec", "eval", "setattr", "debug", "info"),
        *("warning", "error", "add_scalar", "log_metric"),
    }
)
"""What a name in the code may leave a trace by."""


def raised_at(
    recipe: Recipe, rates: Sequence[float], given: float | None, schedulers: Iterable[Any]
) -> SourceSpan | None:
    """`rates` of the first group, step by step; None where none is above `given`, or where no
    function of the user's gives the highest one."""
    highest = max(rates, default=0.0)
    if given is None or not highest > RAISED * given > 0:
        return None
    step = rates.index(highest)
    asked = [
        (function, (number,), base)
        for scheduler in schedulers
        for function, base in _factors(scheduler)
        for number in _near(step, getattr(scheduler, "last_epoch", None))
    ]
    asked += [(function, (n,), 1.0) for function in _of_loop(recipe) for n in _near(step, None)]
    for function, arguments, base in asked:
        # a function of the user's may raise anything
        with contextlib.suppress(Exception):
            if not _only_reckons(function):
                continue
            value, line = returned_from(function, arguments)
            if math.isclose(float(value) * base, highest, rel_tol=_SAME):
                return line
    return None


def returned_from(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, SourceSpan | None]:
    """(what a function of the user's returns, the line that does); raises what it raises."""
    code, lines = code_of(function), list[int]()

    def traced(frame: FrameType, event: str, arg: Any) -> Any:
        lines.append(frame.f_lineno)
        return traced

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        return traced if frame.f_code is code else None

    former = sys.gettrace()
    sys.settrace(called)
    try:
        value = function(*arguments)
    finally:
        sys.settrace(former)
    if code is None or not lines:
        return value, None
    return value, line_span(code.co_filename, lines[-1], code.co_qualname)


def _only_reckons(function: Any, depth: int = 3) -> bool:
    """It changes nothing that outlives its call, as far as its code and that of the user's
    functions that it names tell: asked again, it leaves no trace."""
    code = code_of(function)
    if code is None or not depth:
        return False
    if any(step.opname in _STORES for step in dis.get_instructions(code)):
        return False
    if _TRACES & set(code.co_names) or any(isinstance(c, CodeType) for c in code.co_consts):
        return False
    found = getattr(function, "__func__", function)
    named = getattr(found, "__globals__", {})
    inner = [named[name] for name in code.co_names if isinstance(named.get(name), FunctionType)]
    closed = [cell.cell_contents for cell in getattr(found, "__closure__", None) or ()]
    inner += [value for value in closed if isinstance(value, FunctionType)]
    return all(_only_reckons(value, depth - 1) for value in inner if code_of(value) is not None)


def _factors(scheduler: Any) -> Iterator[tuple[Callable[..., Any], float]]:
    """(function, what it is multiplied with) of a LambdaLR."""
    functions, bases = getattr(scheduler, "lr_lambdas", ()), getattr(scheduler, "base_lrs", ())
    for function, base in zip(functions, bases, strict=False):
        if code_of(function) is not None and isinstance(base, float):
            yield function, base


def _near(step: int, last: int | None) -> list[int]:
    """What a schedule may have counted in that step; by batches, or by passes over the data."""
    counted = [step, step + 1, step - 1, *([last, last - 1] if isinstance(last, int) else [])]
    return [number for number in dict.fromkeys(counted) if number >= 0]


def _of_loop(recipe: Recipe) -> Iterator[Callable[..., Any]]:
    """The functions of one argument whose value a script's own code makes the rate of a group:
    `group["lr"] = rate`, where `rate = rate_of(iteration)`."""
    step: Any = recipe.train_step
    if not getattr(step, "of_script", False) or step.code is None:
        return
    file = step.code.co_filename
    if frame_kind(file) != USER:
        return
    names = {**step.namespace, **step.variables}
    assigned = [node for node in nodes_of(file) if isinstance(node, ast.Assign)]
    given = [node.value for node in assigned if any(map(_is_rate, node.targets))]
    named = {value.id for value in given if isinstance(value, ast.Name)}
    given += [
        node.value
        for node in assigned
        if any(isinstance(target, ast.Name) and target.id in named for target in node.targets)
    ]
    for call in given:
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) == 1:
            function = names.get(call.func.id)
            if not call.keywords and callable(function) and code_of(function) is not None:
                yield function


def _is_rate(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "lr"
    )
