"""Where the user's source gives a value to the name that an optimizer takes for its learning rate:
read from the source, and used for nothing but the line that is shown."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.bindings import bound_once
from nanodoc.trace.files import USER, absolute, frame_kind, line_span
from nanodoc.trace.parsed import function_around, nodes_of

_DEEPEST = 4
_TRAINING = frozenset(("train", "fit", "fit_one_cycle", "fine_tune", "learn", "partial_fit"))
_NAMES = frozenset(("lr", "learning_rate", "max_lr", "base_lr", "lr_max"))
"""Of arguments, options, fields and entries that give a rate to a trainer."""


def rate_named_at(made: SourceSpan, kind: str, rate: object) -> SourceSpan | None:
    """For an optimizer of the class `kind` that was `made` there as `SGD(model.parameters(),
    lr=rate)`, the line that gives that name its value; for `args.lr` the option whose default is
    `rate`; for a trainer's `train()`, which makes its optimizer, the argument with that number.
    None where the value stands in the call, where groups have rates of their own, or where
    several lines may have given it."""
    file = absolute(made.file)
    if frame_kind(file) != USER:
        return None
    nodes = nodes_of(file)
    calls = (node for node in nodes if isinstance(node, ast.Call) and node.lineno == made.line)
    call = next((node for node in calls if node.col_offset == made.column - 1), None)
    if call is not None and _is_trainers(call):
        return _given_to_trainer(file, nodes, rate)
    value = _rate(call, kind) if call is not None else None
    return _given(file, nodes, value, made.line, rate, _DEEPEST) if value is not None else None


def _is_trainers(call: ast.Call) -> bool:
    """It trains, and makes the optimizer inside."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _TRAINING


def _given_to_trainer(file: str, nodes: Sequence[ast.AST], rate: object) -> SourceSpan | None:
    """The only line that gives the number to something with a rate's name:
    `TrainingArguments(learning_rate=0.1)`."""
    found = {
        number.lineno
        for node in nodes
        for name, number in _named_values(node)
        if name.lstrip("-").replace("-", "_").rpartition("__")[2] in _NAMES and _is(number, rate)
    }
    line = found.pop() if len(found) == 1 else None
    return line_span(file, line, function_around(nodes, line)) if line is not None else None


def _rate(call: ast.Call, kind: str) -> ast.expr | None:
    groups = (node for node in ast.walk(call) if isinstance(node, ast.Dict))
    if any(isinstance(key, ast.Constant) and key.value == "lr" for g in groups for key in g.keys):
        return None
    named = next((word.value for word in call.keywords if word.arg == "lr"), None)
    # the second argument of a function that makes an optimizer may be anything
    called = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    return named or (call.args[1] if called == kind and len(call.args) > 1 else None)


def _given(
    file: str, nodes: Sequence[ast.AST], value: ast.expr, line: int, rate: object, depth: int
) -> SourceSpan | None:
    if isinstance(value, (ast.Attribute, ast.Subscript)):
        found = _written(nodes, value) or _default(nodes, value, rate)
        return line_span(file, found, function_around(nodes, found)) if found else None
    if not isinstance(value, ast.Name) or depth == 0:
        return None
    bound = bound_once(nodes, value.id, line)
    if bound is None:
        return None
    again = _given(file, nodes, bound.value, bound.lineno, rate, depth - 1)
    return again or line_span(file, bound.lineno, function_around(nodes, bound.lineno))


def _written(nodes: Sequence[ast.AST], value: ast.expr) -> int | None:
    """The only line that assigns to `args.lr` itself, and more than a name."""
    name = ast.unparse(value)
    found = [
        node
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AugAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if ast.unparse(target) == name
    ]
    only = found[0] if len(found) == 1 else None
    return only.lineno if only is not None and not isinstance(only.value, ast.Name) else None


def _default(
    nodes: Sequence[ast.AST], value: ast.Attribute | ast.Subscript, rate: object
) -> int | None:
    """The line of an option, a field of a class, or an entry of a dictionary, by its name and its
    number."""
    key = value.attr if isinstance(value, ast.Attribute) else getattr(value.slice, "value", None)
    found = {
        number.lineno
        for node in nodes
        for name, number in _named_values(node)
        if name.lstrip("-").replace("-", "_") == key and _is(number, rate)
    }
    return found.pop() if len(found) == 1 else None


def _named_values(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
        default = next((word.value for word in node.keywords if word.arg == "default"), None)
        options = [o.value for o in node.args if isinstance(o, ast.Constant)]
        if default is not None:
            yield from ((str(option), default) for option in options)
    elif isinstance(node, ast.Call):
        yield from ((word.arg, word.value) for word in node.keywords if word.arg is not None)
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        if node.value is not None:
            yield node.target.id, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            name = getattr(target, "id", None) or getattr(target, "attr", None)
            if isinstance(name, str):
                yield name, node.value
    elif isinstance(node, ast.Dict):
        for name, item in zip(node.keys, node.values, strict=True):
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value, item


def _is(value: ast.expr, rate: object) -> bool:
    return (
        isinstance(value, ast.Constant)
        and type(value.value) in (int, float)
        and value.value == rate
    )
