"""Calls of a step whose result nobody can read, by the syntax of the line that they stand on."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from functools import lru_cache

from nanodoc.examination.labels import user_files
from nanodoc.examination.running import ran_statements, running_scopes, scope_of
from nanodoc.facts.calls import CallFacts, StepCalls
from nanodoc.facts.source import SourceSpan
from nanodoc.recipe.recipe import Recipe
from nanodoc.trace.branches import RAN, Scope
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import FUNCTION, function_around, nodes_of, statements_of
from nanodoc.vocabulary.calls import ADDITIONS, CLAMPS, FACTORS
from nanodoc.vocabulary.names import canonical, spelled

_PARAMETERS = ("parameters", "named_parameters")
_OF_NEW_VALUES = (
    *CLAMPS,
    *ADDITIONS,
    *FACTORS,
    "lerp",
    "renorm",
    "addcmul",
    "addcdiv",
    "neg",
    "sign",
    "round",
)
_Extent = tuple[int, int, int, int]  # line, column, end line, end column; columns from 1

_OPERATORS: dict[type[ast.operator], tuple[str, ...]] = {
    ast.Add: ("add",),
    ast.Sub: ("sub",),
    ast.Mult: ("mul",),
    ast.Div: ("div", "rdiv"),
    ast.Pow: ("pow", "rpow"),
    ast.MatMult: ("matmul",),
}


def discarded(calls: StepCalls) -> tuple[int, ...]:
    """Positions of the calls in the user's own code that give a new tensor which is thrown away:
    the call is a statement by itself (`x.clamp(0, 1)`), it writes into a copy that has no name
    (`x[mask].zero_()`), or its result is given to the variable of the loop around it, which is not
    read again (`for p in weights: p = p * 0.9`). What only waits for a device to be done
    (`x.sum()`) has a smaller result and is none of them."""
    return tuple(call.index for call in calls.calls if _is_lost(call, calls))


def lost_updates(recipe: Recipe, calls: StepCalls) -> tuple[SourceSpan, ...]:
    """Statements in functions that the step runs, in a loop over parameters, which are nothing but
    a method of one that changes nothing in place: `p.data.clamp(-1, 1)`. They may stand behind the
    optimizer's step, where a step that is run again has ended."""
    found = []
    running = running_scopes(recipe)
    for file in sorted(user_files(call.called_from or call.location for call in calls.calls)):
        nodes = nodes_of(file)
        inside: dict[ast.AST, Scope] = {}  # functions come from the outside in
        for scope in (node for node in nodes if isinstance(node, (*FUNCTION, ast.Module))):
            inside |= dict.fromkeys(ast.walk(scope), scope)
        for loop in nodes:
            if not isinstance(loop, ast.For) or not _goes_through_parameters(loop.iter):
                continue
            if scope_of(file, inside[loop]) not in running:
                continue
            names = _bound_by(loop.target)
            states = ran_statements(inside[loop], file, recipe)
            for statement in statements_of(loop.body):
                if states.get(id(statement)) != RAN:
                    continue
                if isinstance(statement, ast.Expr) and _is_new_value(statement.value, names):
                    around = function_around(nodes, statement.lineno)
                    found.append(line_span(file, statement.lineno, around))
    return tuple(dict.fromkeys(found))


def _goes_through_parameters(iterated: ast.expr) -> bool:
    called = (node.func for node in ast.walk(iterated) if isinstance(node, ast.Call))
    return any(isinstance(f, ast.Attribute) and f.attr in _PARAMETERS for f in called)


def _is_new_value(value: ast.expr, names: set[str]) -> bool:
    """A method that gives a new tensor, of one of the names or of its `.data`."""
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    owner = value.func.value
    if isinstance(owner, ast.Attribute) and owner.attr == "data":
        owner = owner.value
    out = any(keyword.arg in ("out", None) for keyword in value.keywords)
    named = isinstance(owner, ast.Name) and owner.id in names
    return (
        named
        and value.func.attr == spelled(value.func.attr)
        and canonical(value.func.attr) in _OF_NEW_VALUES
        and not out
    )


def _is_lost(call: CallFacts, calls: StepCalls) -> bool:
    if call.location is None or call.called_from is not None or not call.arguments:
        return False
    node = _dropped(call.location.file).get(_of_span(call.location))
    if node is None or not _calls_itself(node, call.name):
        return False
    if call.in_place:
        return _writes_into_a_copy(node, call, calls)
    return math.prod(call.shape) >= math.prod(call.arguments[0].shape) > 0


def _calls_itself(node: ast.expr, name: str) -> bool:
    """The expression is the call of that name, and no function that makes such a call."""
    if isinstance(node, ast.BinOp):
        return name in _OPERATORS.get(type(node.op), ())
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else None
    called = node.func.id if isinstance(node.func, ast.Name) else called
    out = any(keyword.arg in ("out", None) for keyword in node.keywords)
    return canonical(called or "") == name and not out


def _writes_into_a_copy(node: ast.expr, call: CallFacts, calls: StepCalls) -> bool:
    """What the method belongs to was made by the expression before its dot."""
    method = node.func if isinstance(node, ast.Call) else None
    made_by = call.arguments[0].made_by
    if not isinstance(method, ast.Attribute) or made_by is None:
        return False
    maker = calls.calls[made_by]
    return (
        isinstance(method.value, (ast.Call, ast.Subscript))
        and maker.location is not None
        and _of_span(maker.location) == _extent(method.value)
        and not maker.view
        and not maker.in_place
        and bool(maker.arguments)
    )


@lru_cache(maxsize=64)
def _dropped(file: str) -> dict[_Extent, ast.expr]:
    """The expressions of a file whose values are dropped, by where they stand."""
    found: list[ast.expr] = []
    around: dict[ast.AST, ast.AST] = {}  # loops, and the functions that they stand in
    for node in nodes_of(file):
        if isinstance(node, ast.Expr):
            found.append(node.value)
        elif isinstance(node, ast.For):
            found += _lost_rebindings(node, around.get(node))
        elif isinstance(node, (*FUNCTION, ast.Module)):
            # functions come from the outside in: the innermost stays
            around.update((loop, node) for loop in ast.walk(node) if isinstance(loop, ast.For))
    return {_extent(node): node for node in found}


def _lost_rebindings(loop: ast.For, function: ast.AST | None) -> Iterator[ast.expr]:
    """What a loop's body gives to a variable of the loop that nothing mentions behind, in the body
    or after the loop."""
    targets = _bound_by(loop.target)
    after = list(_behind(loop.end_lineno or loop.lineno, function)) if function else []
    for position, statement in enumerate(loop.body):
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id not in targets:
            continue
        behind = [*loop.body[position + 1 :], *loop.orelse, *after]
        if not any(_mentions(later, target.id) for later in behind):
            yield statement.value


def _behind(line: int, node: ast.AST) -> Iterator[ast.stmt]:
    """The outermost statements that begin behind a line."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and child.lineno > line:
            yield child
        else:
            yield from _behind(line, child)


def _bound_by(target: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}


def _mentions(node: ast.AST, name: str) -> bool:
    """What another loop binds anew is another variable."""
    if isinstance(node, ast.For) and name in _bound_by(node.target):
        return _mentions(node.iter, name)
    if isinstance(node, ast.Name) and node.id == name:
        return True
    return any(_mentions(child, name) for child in ast.iter_child_nodes(node))


def _of_span(span: SourceSpan) -> _Extent:
    return span.line, span.column, span.end_line, span.end_column


def _extent(node: ast.expr) -> _Extent:
    end_line, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return node.lineno, node.col_offset + 1, end_line, end + 1
