"""Which line of the user's source makes a part of what a function returns, or a variable: read from
the source, where running it would not tell."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Any

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import definition_of, function_around, nodes_of, statements_of, tree_of
from nanodoc.vocabulary.calls import RESHAPING
from nanodoc.vocabulary.source import CONVERTING, MAKING_TENSORS

Key = int | str
_DEEPEST = 8
# methods that give their object's values in another place, dtype or shape
_VALUES_KEPT = frozenset((*CONVERTING, *RESHAPING, "squeeze", "unsqueeze"))
_OF_LISTS = frozenset((*MAKING_TENSORS, "stack"))
_AROUND = frozenset(("enumerate", "tqdm", "iter", "track"))


@dataclass(frozen=True, slots=True)
class _Scope:
    """The statements of one function or module, and the names outside of it."""

    file: str
    function: str
    body: tuple[ast.stmt, ...]
    names: Mapping[str, Any]

    def span(self, node: ast.stmt, part: ast.expr | None = None) -> SourceSpan:
        """Of a statement; of one over several lines that of the `part` of what it gives back."""
        if part is None or part is getattr(node, "value", None):
            return line_span(self.file, node.lineno, self.function)
        return line_span(self.file, part.lineno, self.function)

    def statements(self) -> Iterator[ast.stmt]:
        return statements_of(self.body)


def line_of_part(function: Any, path: Sequence[Key], owner: Any = None) -> SourceSpan | None:
    """The line that makes the part at `path` of what a function of the user's returns or yields:
    `(1,)` for the second item, `("labels",)` for that key; a method of `owner` may give what that
    keeps. None where the source does not tell."""
    scope = _scope_of(function, owner)
    return _of_function(scope, tuple(path), _DEEPEST) if scope is not None else None


def line_of_variable(
    code: CodeType, names: Mapping[str, Any], variable: str, path: Sequence[Key] = ()
) -> SourceSpan | None:
    """The line that makes what a variable of a running function or module holds. `names` are its
    variables and globals."""
    if frame_kind(code.co_filename) != USER:
        return None
    whole = code.co_name == "<module>"
    holder = tree_of(code.co_filename) if whole else definition_of(code)
    if holder is None:
        return None
    scope = _Scope(code.co_filename, code.co_qualname, tuple(holder.body), names)
    return _of_name(scope, variable, tuple(path), 1 << 30, _DEEPEST)


def lines_calling(file: str, names: Sequence[str], keyword: str | None = None) -> list[SourceSpan]:
    """The lines of a file that call one of the names, also as an attribute; with this argument, if
    one is told, as the first one or by its name."""
    nodes = nodes_of(file)
    return [
        line_span(file, node.lineno, function_around(nodes, node.lineno))
        for node in nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in names
        and (keyword is None or node.args or any(given.arg == keyword for given in node.keywords))
    ]


def lines_stepping(file: str) -> list[SourceSpan]:
    """The lines of a file that call a method `step` of a variable with one argument, which is no
    closure: `scheduler.step(accuracy)`."""
    nodes = nodes_of(file)
    return [
        line_span(file, node.lineno, function_around(nodes, node.lineno))
        for node in nodes
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "step"
        and len(node.args) == 1
        and re.search(r"(?i)sched|plateau", ast.unparse(node.func))
    ]


def code_of(function: Any) -> CodeType | None:
    """That of a function or method of the user's, or of an object that is called."""
    found = _function_of(function)
    return found.__code__ if found is not None else None


def _function_of(function: Any) -> FunctionType | None:
    found = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(found, FunctionType):
        found = getattr(type(found), "__call__", None)  # noqa: B004  # it is not called
    user = isinstance(found, FunctionType) and frame_kind(found.__code__.co_filename) == USER
    return found if user else None


def _scope_of(called: Any, owner: Any = None) -> _Scope | None:
    function = _function_of(called)
    if function is None:
        return None
    is_object = not hasattr(called, "__code__") and not hasattr(called, "__func__")
    owner = called if is_object else getattr(called, "__self__", owner)
    code = function.__code__
    node = definition_of(code)
    if node is None:
        return None
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    if owner is not None and node.args.args:
        names[node.args.args[0].arg] = owner
    return _Scope(code.co_filename, code.co_qualname, tuple(node.body), names)


def _of_function(scope: _Scope, path: tuple[Key, ...], depth: int) -> SourceSpan | None:
    found: SourceSpan | None = None
    for node in scope.statements():
        value = _given_back(node)
        if value is not None:
            found = _of_expression(scope, value, path, node, depth) or found
    return found


def _given_back(node: ast.stmt) -> ast.expr | None:
    if isinstance(node, ast.Return):
        return node.value
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield):
        return node.value.value
    return None


def _of_expression(
    scope: _Scope, value: ast.expr, path: tuple[Key, ...], node: ast.stmt, depth: int
) -> SourceSpan | None:
    """The line that makes the part at `path` of an expression of the statement `node`."""
    if depth == 0:
        return scope.span(node, value)
    if isinstance(value, ast.Name):
        return _of_name(scope, value.id, path, node.lineno, depth - 1) or scope.span(node, value)
    if path:
        inner = _part(value, path[0])
        if inner is not None:
            return _of_expression(scope, inner, path[1:], node, depth - 1)
    if isinstance(value, ast.Call):
        if isinstance(value.func, ast.Attribute) and value.func.attr in _VALUES_KEPT:
            return _of_expression(scope, value.func.value, path, node, depth - 1)
        if not path and (filled := _filled_at(scope, value, node.lineno)) is not None:
            return scope.span(filled)
        called = _held(scope, value.func)
        other = _scope_of(called) if called is not None else None
        if other is not None:
            return _of_function(other, path, depth - 1) or scope.span(node, value)
    if isinstance(value, ast.Subscript) and isinstance(value.value, ast.Attribute):
        whole = isinstance(value.slice, ast.Name)  # `[index + 1]` may be what is wrong
        kept = _of_attribute(scope, value.value, path, depth - 1) if whole else None
        return kept or scope.span(node, value)
    return scope.span(node, value)


def _filled_at(scope: _Scope, call: ast.Call, before: int) -> ast.stmt | None:
    """Where the list that `torch.tensor(rows)` makes a tensor of gets its items: the last
    `rows.append(...)`, or the comprehension; None for other calls, and for other lists."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = call.args[0] if call.args else None
    if name not in _OF_LISTS or not isinstance(given, ast.Name):
        return None
    found = [
        node for node in scope.statements() if node.lineno < before and _puts_items(node, given.id)
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _puts_items(node: ast.stmt, name: str) -> bool:
    if isinstance(node, ast.Assign):
        bound = any(isinstance(t, ast.Name) and t.id == name for t in node.targets)
        return bound and isinstance(node.value, ast.ListComp)
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    into = call.func.value
    made = not call.args or not isinstance(call.args[0], (ast.Name, ast.Attribute, ast.Subscript))
    return call.func.attr == "append" and made and isinstance(into, ast.Name) and into.id == name


def _held(scope: _Scope, value: ast.expr) -> Any:
    """What a name, or an attribute of what a name stands for, holds; None where that is not
    known."""
    if isinstance(value, ast.Name):
        return scope.names.get(value.id)
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        owner = scope.names.get(value.value.id)
        known = {**vars(type(owner)), **getattr(owner, "__dict__", {})}
        found = known.get(value.attr)
        if isinstance(found, FunctionType) and value.attr not in getattr(owner, "__dict__", {}):
            return MethodType(found, owner)
        return found
    return None


def _of_attribute(
    scope: _Scope, attribute: ast.Attribute, path: tuple[Key, ...], depth: int
) -> SourceSpan | None:
    """The line of the owner's class that makes what the attribute keeps one of: `self.items.append(
    item)`, `self.items = [item for …]`. None where that is a name, or does not show."""
    owner = scope.names.get(attribute.value.id) if isinstance(attribute.value, ast.Name) else None
    if owner is None or depth <= 0:
        return None
    found: SourceSpan | None = None
    for method in vars(type(owner)).values():
        reads = isinstance(method, FunctionType) and attribute.attr in method.__code__.co_names
        other = _scope_of(method, owner) if reads else None
        if other is None:
            continue
        for node in other.statements():
            value = _put_into(node, attribute.attr)
            if value is None or isinstance(value, (ast.Name, ast.Attribute)):
                continue
            if isinstance(value, (ast.List, ast.Dict)) and not ast.unparse(value)[1:-1]:
                continue  # empty: what is put into it comes later
            found = _of_expression(other, value, path, node, depth)
    return found


def _put_into(node: ast.stmt, name: str) -> ast.expr | None:
    """What a statement makes the attribute of that name, or puts into it."""
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and target.attr == name:
            made = node.value
            return made.elt if isinstance(made, (ast.ListComp, ast.GeneratorExp)) else made
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) == 1:
        into = call.func.value
        if call.func.attr == "append" and isinstance(into, ast.Attribute) and into.attr == name:
            return call.args[0]
    return None


def _part(value: ast.expr, key: Key) -> ast.expr | None:
    if isinstance(value, (ast.Tuple, ast.List)) and isinstance(key, int):
        return value.elts[key] if key < len(value.elts) else None
    if isinstance(value, ast.Dict):
        for name, item in zip(value.keys, value.values, strict=True):
            if isinstance(name, ast.Constant) and name.value == key:
                return item
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return next((k.value for k in value.keywords if k.arg == key and key), None)
    return None


def _of_name(
    scope: _Scope, name: str, path: tuple[Key, ...], before: int, depth: int
) -> SourceSpan | None:
    """The last statement above the line `before` that binds the name, moves looked through; or that
    puts the part into what it holds."""
    put = _put_at(scope, name, path[0], before) if path else None
    bound = [
        (node, position, value)
        for node in scope.statements()
        for position, value in _bindings(node, name)
        if node.lineno < before
    ]
    bound.sort(key=lambda found: found[0].lineno)
    if put is not None and not (bound and bound[-1][0].lineno > put.lineno):
        return _of_expression(scope, put.value, path[1:], put, depth)
    while bound:
        node, position, value = bound.pop()
        inner = _part(value, position[0]) if position else value
        whole = inner if inner is not None else value
        rest = path if inner is not None else (*position, *path)
        if _moves(whole, name):
            continue
        if isinstance(node, ast.For):
            return _of_loop(scope, node, rest, depth)
        return _of_expression(scope, whole, rest, node, depth)
    return None


def _put_at(scope: _Scope, name: str, key: Key, before: int) -> ast.Assign | None:
    """The last statement above the line `before` that is `name[key] = ...`."""
    found = [
        node
        for node in scope.statements()
        if isinstance(node, ast.Assign) and node.lineno < before
        for target in node.targets
        if isinstance(target, ast.Subscript) and _position(target.value, name) == ()
        if isinstance(target.slice, ast.Constant) and target.slice.value == key
    ]
    return max(found, key=lambda node: node.lineno, default=None)


def _bindings(node: ast.stmt, name: str) -> Iterator[tuple[tuple[int, ...], ast.expr]]:
    """(position among the targets, value) of each binding of the name."""
    if isinstance(node, ast.Assign):
        targets, value = node.targets, node.value
    elif isinstance(node, ast.For):
        targets, value = [node.target], node.iter
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets, value = [node.target], node.value
    else:
        return
    for target in targets:
        position = () if _fills(target, value, name) else _position(target, name)
        if position is not None:
            yield position, value


def _fills(target: ast.expr, value: ast.expr, name: str) -> bool:
    """`labels[:, :-1] = ids[:, 1:]`: most of the name's values come from here."""
    sliced = isinstance(target, ast.Subscript) and any(
        isinstance(node, ast.Slice) for node in ast.walk(target.slice)
    )
    # a name may be the number that stands for no label
    if not sliced or not isinstance(value, (ast.Subscript, ast.Call, ast.BinOp)):
        return False
    return isinstance(target, ast.Subscript) and _position(target.value, name) == ()


def _position(target: ast.expr, name: str) -> tuple[int, ...] | None:
    if isinstance(target, ast.Name):
        return () if target.id == name else None
    if isinstance(target, (ast.Tuple, ast.List)):
        for number, item in enumerate(target.elts):
            inner = _position(item, name)
            if inner is not None:
                return (number, *inner)
    return None


def _moves(value: ast.expr, name: str) -> bool:
    """`x.to(device)` of x itself."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr in _VALUES_KEPT
    ):
        value = value.func.value
    return isinstance(value, ast.Name) and value.id == name


def _of_loop(scope: _Scope, node: ast.For, path: tuple[Key, ...], depth: int) -> SourceSpan | None:
    """Of what a loop draws from a loader that a variable holds."""
    source = node.iter
    while isinstance(source, ast.Call) and isinstance(source.func, ast.Name) and source.args:
        if source.func.id not in _AROUND:
            break
        if source.func.id == "enumerate":
            path = path[1:]
        source = source.args[0]
    held = scope.names.get(source.id) if isinstance(source, ast.Name) else None
    return line_in_data(held, path) if held is not None else None


def collator_of(data: Any) -> Any:
    """A loader's collate function, without what a trainer wraps it in to drop columns."""
    collator = getattr(data, "collate_fn", None)
    for _ in range(_DEEPEST):
        collator = getattr(collator, "data_collator", collator)
    return collator


def line_in_data(data: Any, path: Sequence[Key]) -> SourceSpan | None:
    """The line that makes the part at `path` of the batches of a loader or of another iterable: in
    its collate function, its data set, or its own `__iter__`. None for what no code of the user's
    makes."""
    dataset = getattr(data, "dataset", None)
    collator = collator_of(data)
    collated = line_of_part(collator, path)
    while dataset is not None and getattr(dataset, "dataset", None) is not None:
        dataset = dataset.dataset  # a Subset's
    item = getattr(type(dataset), "__getitem__", None) or getattr(type(dataset), "__iter__", None)
    own = None
    if dataset is None and not hasattr(data, "gi_code"):
        own = line_of_part(getattr(type(data), "__iter__", None), path, data)
    return collated or line_of_part(item, path, dataset) or own
