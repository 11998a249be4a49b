"""Which statements of a function or module have run, as far as its `if` tests can be read from what
global names are bound to. What stands in a branch that nobody took is no evidence."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nanodoc.trace.parsed import FUNCTION, own_nodes, statements_of

_PLAIN = (str, int, float, bool, type(None))
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda value, among: value in among,
    ast.NotIn: lambda value, among: value not in among,
}

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
RAN, MAYBE, NEVER = "ran", "maybe", "never"
_UNKNOWN = object()

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module


def ran(scope: Scope, module: ast.Module, values: Mapping[str, Any]) -> dict[int, str]:
    """RAN, MAYBE or NEVER of each statement of a scope that ran itself, by the statement's id.
    `module` is the file's tree, `values` its global names. A loop's body counts as run, an
    exception as not raised."""
    found = _Reading(_once_bound(scope, module, values))
    found.block(scope.body, RAN)
    return found.by_id


def _once_bound(scope: Scope, module: ast.Module, values: Mapping[str, Any]) -> dict[str, Any]:
    """The globals that had the value of the end all the time, as far as the source tells."""
    inside = _bound(ast.walk(scope)) if scope is not module else set()
    shared = {
        name for node in ast.walk(module) if isinstance(node, ast.Global) for name in node.names
    }
    outside: list[str] = []
    for statement in statements_of(module.body):
        bound = _bound(own_nodes(statement))
        outside += bound
        if isinstance(statement, (*_LOOPS, ast.AugAssign)):  # other values in turn
            inside |= bound
            for inner in statements_of(getattr(statement, "body", [])):
                inside |= _bound(own_nodes(inner))
    return {
        name: value
        for name, value in values.items()
        if name not in inside | shared and outside.count(name) <= 1
    }


def _bound(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that are bound, or an attribute or item of which is."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found


class _Reading:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._goes_through: set[str] = set()
        """What the loops around bind: a test of it goes either way in turn."""
        self.by_id: dict[int, str] = {}

    def block(self, body: Sequence[ast.stmt], state: str) -> str:
        """The state of what follows behind the block."""
        for statement in body:
            self.by_id[id(statement)] = state
            state = self._behind(statement, state)
        return state

    def _behind(self, statement: ast.stmt, state: str) -> str:
        if isinstance(statement, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            return NEVER
        if isinstance(statement, (*FUNCTION, ast.ClassDef)):
            return state
        if isinstance(statement, ast.If):
            return self._behind_if(statement, state)
        if isinstance(statement, _LOOPS):
            return self._behind_loop(statement, state)
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        after = [self.block(body, state) for body in blocks if body]
        asides = [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
        for aside in asides:
            self.block(aside.body, _weaker(state, MAYBE))
        if isinstance(statement, ast.Match):
            return _weaker(state, MAYBE) if _leaves(statement) else state
        return _weaker(state, MAYBE) if any(one != state for one in after) else state

    def _behind_loop(self, loop: ast.For | ast.AsyncFor | ast.While, state: str) -> str:
        never = isinstance(loop, ast.While) and _truth(loop.test, self._values) is False
        bound = set() if isinstance(loop, ast.While) else _names(loop.target)
        around, self._goes_through = self._goes_through, self._goes_through | bound
        self.block(loop.body, NEVER if never else state)
        self._goes_through = around
        self.block(loop.orelse, _weaker(state, MAYBE))
        return _weaker(state, MAYBE) if not never and _leaves(loop) else state

    def _behind_if(self, statement: ast.If, state: str) -> str:
        truth = _truth(statement.test, self._values)
        both = RAN if self._goes_through & _names(statement.test) else MAYBE
        taken = (both, both) if truth is None else (RAN, NEVER) if truth else (NEVER, RAN)
        behind = [
            self.block(body, _weaker(state, how))
            for body, how in zip((statement.body, statement.orelse), taken, strict=True)
        ]
        if truth is not None:
            return behind[0 if truth else 1]
        return _weaker(state, MAYBE) if _leaves(statement) else state


def _weaker(one: str, other: str) -> str:
    return max(one, other, key=(RAN, MAYBE, NEVER).index)


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _leaves(statement: ast.stmt) -> bool:
    """Somewhere inside the function is left."""
    return any(isinstance(n, (ast.Return, ast.Raise)) for n in statements_of([statement]))


# -- tests -----------------------------------------------------------------------------------------


def _truth(test: ast.expr, values: Mapping[str, Any]) -> bool | None:
    """None where it cannot be read."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, values)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        found = [_truth(part, values) for part in test.values]
        ends = isinstance(test.op, ast.Or)
        if ends in found:
            return ends
        return None if None in found else not ends
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        sides = [_value(side, values) for side in (test.left, test.comparators[0])]
        if _UNKNOWN in sides:
            return None
        try:
            return bool(_COMPARED[type(test.ops[0])](*sides))
        except TypeError:
            return None
    value = _value(test, values)
    return None if value is _UNKNOWN else bool(value)


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """A plain value, or several of them; nothing of the user's is called for it."""
    found: Any = _UNKNOWN
    if isinstance(node, ast.Constant):
        found = node.value
    elif isinstance(node, ast.Name):
        found = values.get(node.id, _UNKNOWN)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        found = _attributes(values.get(node.value.id)).get(node.attr, _UNKNOWN)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = values.get(node.value.id) if isinstance(node.value, ast.Name) else None
        found = owner.get(node.slice.value, _UNKNOWN) if type(owner) is dict else _UNKNOWN
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        found = tuple(_value(part, values) for part in node.elts)
    if type(found) in (tuple, list):
        return tuple(found) if all(type(part) in _PLAIN for part in found) else _UNKNOWN
    return found if type(found) in _PLAIN else _UNKNOWN


def _attributes(owner: object) -> Mapping[str, Any]:
    """An object's or a class's own, without asking it for them."""
    try:
        found: Mapping[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found
