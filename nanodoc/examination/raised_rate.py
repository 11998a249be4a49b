"""Which line gives the highest learning rate of a run, where a schedule raised it above the one
that the optimizer was given, or the last one, where it is gone: the function of the schedule is
asked again, and followed."""

from __future__ import annotations

import ast
import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.recipe.variables import variables_of
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import nodes_of
from nanodoc.trace.reckoning import only_reckons
from nanodoc.trace.returned import code_of

RAISED = 1.5
"""Times the rate that was given: more is no rounding."""
_GONE = 1e-4
"""Of the highest rate: nothing moves any more."""
_SAME = 1e-6  # relative


def raised_at(
    recipe: Recipe, rates: Sequence[float], given: float | None, schedulers: Iterable[Any]
) -> SourceSpan | None:
    """`rates` of the first group, step by step: the highest one, where it is above `given`; the
    last one, where they rise again, having come down. None where no function of the user's gives
    it."""
    highest = max(rates, default=0.0)
    if given is not None and (highest > RAISED * given > 0 or _is_nominal(given, highest)):
        return _given_at(recipe, rates, rates.index(highest), schedulers)
    if _rise_again(rates):
        return _given_at(recipe, rates, len(rates) - 1, schedulers)
    return None


def gone_at(recipe: Recipe, rates: Sequence[float], schedulers: Iterable[Any]) -> SourceSpan | None:
    """The line that gives the last rate of a run, where that is next to nothing of the highest one
    and a function of the user's gives it."""
    if not rates or rates[-1] > _GONE * max(rates):
        return None
    return _given_at(recipe, rates, len(rates) - 1, schedulers)


def _given_at(
    recipe: Recipe, rates: Sequence[float], step: int, schedulers: Iterable[Any]
) -> SourceSpan | None:
    """The line of the user's function that gives the rate of that step."""
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
            if not only_reckons(function):
                continue
            value, line = returned_from(function, arguments)
            if math.isclose(float(value) * base, rates[step], rel_tol=_SAME):
                return line
    return None


def _rise_again(rates: Sequence[float]) -> bool:
    """They had come down to less than half, and have risen ever since, through the last quarter and
    more, to twice as much: no restart."""
    if not rates:
        return False
    lowest = min(rates)
    before = rates[: rates.index(lowest)]
    since = rates[len(rates) - rates[::-1].index(lowest) - 1 :]
    return (
        2 * lowest < max(before, default=0.0)
        and 2 * lowest < rates[-1]
        and 4 * len(since) > len(rates)
        and all(earlier <= later for earlier, later in itertools.pairwise(since))
    )


def _is_nominal(given: float, highest: float) -> bool:
    """A rate of 1 that is not the highest: the function of the schedule gives the rates."""
    return given == 1.0 and highest > 0 and not math.isclose(highest, given, rel_tol=_SAME)


def returned_from(
    function: Callable[..., Any], arguments: tuple[Any, ...]
) -> tuple[Any, SourceSpan | None]:
    """(what a function of the user's returns, the line that does: of one that only hands on what
    another of the user's returns, that one's); raises what it raises."""
    code, returns = code_of(function), list[tuple[Any, SourceSpan]]()

    def traced(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            at = frame.f_code
            returns.append((arg, line_span(at.co_filename, frame.f_lineno, at.co_qualname)))
        return traced

    def called(frame: FrameType, event: str, arg: Any) -> Any:
        return traced if frame_kind(frame.f_code.co_filename) == USER else None

    former = sys.gettrace()
    sys.settrace(called)
    try:
        value = function(*arguments)
    finally:
        sys.settrace(former)
    if code is None or not returns:
        return value, None
    return value, next((line for given, line in returns if given is value), returns[-1][1])


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
    """The functions of one argument whose value the training's own code makes the rate of a group:
    `group["lr"] = rate`, where `rate = rate_of(iteration)`."""
    step: Any = recipe.train_step
    of_script = getattr(step, "of_script", False)
    code = step.code if of_script else code_of(step)
    if code is None or frame_kind(file := code.co_filename) != USER:
        return
    names = {name: value for name, _, value in variables_of(step)}
    names |= {**step.namespace, **step.variables} if of_script else {}
    assigned = [node for node in nodes_of(file) if isinstance(node, ast.Assign)]
    given = [node.value for node in assigned if any(map(_is_rate, node.targets))]
    named = {value.id for value in given if isinstance(value, ast.Name)}
    given += [
        node.value
        for node in assigned
        if any(isinstance(target, ast.Name) and target.id in named for target in node.targets)
    ]
    for call in map(_chosen, given):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) == 1:
            function = names.get(call.func.id)
            if not call.keywords and callable(function) and code_of(function) is not None:
                yield function


def _chosen(value: ast.expr) -> ast.expr:
    """The call of `rate_of(iteration) if decays else fixed`."""
    calls = [part for part in _branches(value) if isinstance(part, ast.Call)]
    return calls[0] if len(calls) == 1 else value


def _branches(value: ast.expr) -> tuple[ast.expr, ...]:
    return (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)


def _is_rate(target: ast.expr) -> bool:
    return (
        isinstance(target, ast.Subscript)
        and isinstance(target.slice, ast.Constant)
        and target.slice.value == "lr"
    )
