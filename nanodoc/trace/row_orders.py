"""In which random orders the rows of named arrays are, by the statements of a function from top to
bottom."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from itertools import pairwise

from nanodoc.trace.parsed import own_nodes, statements_of
from nanodoc.vocabulary.source import CONVERTING, MAKING_TENSORS

_INDICES = ("randperm", "permutation")
_SHUFFLES = ("shuffle", "permutation", "permuted")
_STATES = ("get_state", "set_state", "getstate", "setstate", "get_rng_state", "set_rng_state")
_SEEDS = ("seed", "manual_seed", "seed_everything", "set_seed")
_GENERATORS = ("generator", "random_state", "seed", "rng")
_COUNTING = ("arange", "range")
_OF_ROWS = (*CONVERTING, *MAKING_TENSORS)

Order = object
"""What tells one random order from another."""
Pair = tuple[str, str]


@dataclass(slots=True)
class Orders:
    """The random orders of names, at one statement of a function."""

    orders: dict[str, tuple[Order, ...]] = field(default_factory=dict)
    """Those that each name's rows went through."""
    lines: dict[str, int] = field(default_factory=dict)
    """Where the last of them was given."""
    made_of: dict[str, str] = field(default_factory=dict)
    cuts: dict[str, str] = field(default_factory=dict)
    """The part of the rows that each name is, as the source writes it: `[i : i + size]`."""
    indices: dict[str, Order] = field(default_factory=dict)
    """Names that are random permutations themselves."""
    ranges: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    """What was computed of rows in an order: it may be in that order, or in none."""
    unpacked: set[Pair] = field(default_factory=set)
    """What one statement took out of one object."""
    drawn: list[Pair] = field(default_factory=list)
    """What a loop took out of what it goes through, side by side."""
    seed: Order | None = None
    """That of the generators, where nothing was drawn since."""

    def order(self, call: ast.Call) -> Order:
        """That of a random draw: the same of two that begin with the same seed."""
        given = [k.value for k in call.keywords if k.arg in _GENERATORS] or [call.func]
        made = [n for part in given for n in ast.walk(part) if isinstance(n, ast.Call) and n.args]
        if made or isinstance(given[0], ast.Constant):
            return tuple(ast.dump(part) for part in given)
        found = self.seed if self.seed is not None else object()
        self.seed = None
        return found

    def permute(self, name: str, of: str, order: Order, line: int) -> None:
        found = (*self.orders.get(of, ()), order)
        self.alias(name, of)
        self.orders[name], self.lines[name] = found, line

    def alias(self, name: str, of: str) -> None:
        """`name` is `of`, or some of its rows."""
        if name == of:
            return
        origin = self.origin(of)
        self.forget(name)
        if name != origin:  # it may be what it was made of again: `x = shuffled`
            self.made_of[name] = origin
        if of in self.orders:
            self.orders[name] = self.orders[of]
        if of in self.lines:
            self.lines[name] = self.lines[of]
        if of in self.indices:
            self.indices[name] = self.indices[of]
        if of in self.unknown:
            self.unknown.add(name)

    def compute(self, name: str, value: ast.expr) -> None:
        """`name` is something that is made of `value`."""
        read = {dotted(node) for node in ast.walk(value)}
        ordered = bool(read & {*self.orders, *self.unknown})
        self.forget(name)
        if ordered:
            self.unknown.add(name)

    def forget(self, name: str) -> None:
        """It is something else from here on."""
        self.orders.pop(name, None)
        self.lines.pop(name, None)
        self.made_of.pop(name, None)
        self.cuts.pop(name, None)
        self.indices.pop(name, None)
        self.ranges.discard(name)
        self.unknown.discard(name)
        self.unpacked = {pair for pair in self.unpacked if name not in pair}
        self.drawn = [pair for pair in self.drawn if name not in pair]

    def doubt(self, statement: ast.stmt) -> None:
        """The statement may not have run: what it binds or shuffles may be in any order."""
        bound = [dotted(n) for n in own_nodes(statement) if _is_stored(n)]
        shuffled = [
            dotted(argument)
            for call in own_nodes(statement)
            if isinstance(call, ast.Call) and called(call) in _SHUFFLES
            for argument in call.args
        ]
        for name in filter(None, (*bound, *shuffled)):
            self.forget(name)
            self.unknown.add(name)

    def origin(self, name: str) -> str:
        while name in self.made_of:  # each was made of one that was there before
            name = self.made_of[name]
        return name

    def belong(self, one: str, other: str) -> bool:
        """They were unpacked by one statement, or both were put into an order."""
        origins = self.origin(one), self.origin(other)
        known = origins in self.unpacked or origins[::-1] in self.unpacked
        return known or all(name in self.orders for name in (one, other))

    def apart(self, one: str, other: str) -> Pair | None:
        """(what has an order of its own, the other) of two whose rows belong together."""
        orders = [set(self.orders.get(name, ())) for name in (one, other)]
        if orders[0] == orders[1] or self.origin(one) == self.origin(other):
            return None
        if {one, other} & (self.ranges | self.unknown):
            return None
        own = [name for name in (one, other) if name in self.lines]
        last = max(own, key=lambda name: self.lines[name])
        return last, other if last == one else one


def in_order(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a function, of its blocks too, by their lines."""
    return sorted(statements_of(body), key=lambda node: node.lineno)


def follow(statement: ast.stmt, orders: Orders, scope: ast.AST) -> bool:
    """False where the orders cannot be followed: states of generators are put back."""
    calls = [node for node in own_nodes(statement) if isinstance(node, ast.Call)]
    if {called(call) for call in calls} & {*_STATES, "fork_rng"}:
        return False
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        _in_place(statement.value, orders, statement.lineno)
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        _assign(statement, orders, scope)
    elif isinstance(statement, (ast.For, ast.With, ast.AnnAssign)):
        for node in own_nodes(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                orders.forget(node.id)
        if isinstance(statement, ast.For):
            for node in ast.walk(statement.target):
                orders.drawn += _parts(node)
    for call in calls:
        if called(call) in _SEEDS:
            orders.seed = ("seed", *(ast.dump(argument) for argument in call.args))
    return True


def _assign(statement: ast.Assign, orders: Orders, scope: ast.AST) -> None:
    target, value = statement.targets[0], statement.value
    found = parted(target, value)
    for part, given in found:
        name = dotted(part)
        if name is not None and given is value and part is not target:
            orders.compute(name, value)
        elif name is not None:
            _bind(name, given, orders, scope, statement.lineno)
    if isinstance(target, (ast.Tuple, ast.List)) and not isinstance(value, (ast.Tuple, ast.List)):
        orders.unpacked |= set(_parts(target))
        if isinstance(value, ast.Call) and called(value) in _SHUFFLES and len(value.args) > 1:
            order = orders.order(value)  # sklearn.utils.shuffle(x, y)
            for name in filter(None, map(dotted, getattr(target, "elts", ()))):
                orders.permute(name, name, order, statement.lineno)


def _parts(target: ast.AST) -> list[Pair]:
    names = [dotted(part) for part in getattr(target, "elts", ())]
    return [(one, other) for one, other in pairwise(names) if one is not None and other is not None]


def _in_place(call: ast.Call, orders: Orders, line: int) -> None:
    """`rng.shuffle(x)`."""
    name = dotted(call.args[0]) if call.args else None
    if called(call) != "shuffle" or name is None or len(call.args) > 1:
        return
    order = orders.order(call)
    if name in orders.ranges or name in orders.indices:
        orders.indices[name] = order
    else:
        orders.permute(name, name, order, line)


def _bind(name: str, value: ast.expr, orders: Orders, scope: ast.AST, line: int) -> None:
    source = rows_of(value)
    cut = _cut(value)
    taken = _reordered(name, value, orders, scope) if source is None else None
    if source is not None:
        orders.alias(name, source)
    elif taken is not None:
        cut = cut or orders.cuts.get(taken[2] or "")
        orders.permute(name, taken[0], taken[1], line)
    else:
        orders.compute(name, value)
    if cut is not None:
        orders.cuts[name] = cut
    if isinstance(value, ast.Call):
        inner = value.args[0] if called(value) == "list" and value.args else value
        if isinstance(inner, ast.Call) and called(inner) in _COUNTING:
            orders.ranges.add(name)
        elif called(value) in _INDICES and taken is None:
            orders.indices[name] = orders.order(value)


def _reordered(
    target: str, value: ast.expr, orders: Orders, scope: ast.AST
) -> tuple[str, Order, str | None] | None:
    """(name, order, index) of `name[index]`, `rng.permutation(name)` or `shuffle(name)`."""
    value = _bare(value)
    index: ast.expr | None = None
    source: str | None = None
    if isinstance(value, ast.Subscript):
        owner = value.value
        if isinstance(owner, ast.Attribute) and owner.attr in ("iloc", "loc"):
            owner = owner.value
        source, index = rows_of(owner), value.slice
    elif isinstance(value, ast.Call) and called(value) == "index_select" and len(value.args) > 1:
        source = dotted(value.func.value) if isinstance(value.func, ast.Attribute) else None
        index = value.args[1]
    elif isinstance(value, ast.Call) and called(value) in _SHUFFLES and len(value.args) == 1:
        source = dotted(value.args[0])
        # permutation(n) of a number is an index
        if source is None or (called(value) == "permutation" and source != target):
            return None
        return source, orders.order(value), None
    if source is None or index is None:
        return None
    if isinstance(index, ast.Call) and called(index) in _INDICES:
        return source, orders.order(index), None
    name = dotted(index)
    if name is None or name not in orders.indices or _is_read_otherwise(name, scope):
        return None
    return source, orders.indices[name], name


def _is_read_otherwise(name: str, scope: ast.AST) -> bool:
    """An order that does more than to put rows in that order: it may be undone later."""
    nodes = list(ast.walk(scope))
    allowed = {id(n.slice) for n in nodes if isinstance(n, ast.Subscript)}
    for node in nodes:
        if isinstance(node, ast.Call) and called(node) in ("index_select", "shuffle", "len"):
            allowed |= {id(argument) for argument in node.args}
    reads = [n for n in nodes if isinstance(n, ast.Name) and n.id == name]
    return any(isinstance(n.ctx, ast.Load) and id(n) not in allowed for n in reads)


def _is_stored(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Store)


# -- syntax ----------------------------------------------------------------------------------------


def parted(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """`a, b = c, d` as two; of several parts of one value each is made of that."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return [(target, value)]
    if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(part, value) for part in target.elts]


def called(call: ast.Call) -> str:
    """The last name of what is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def dotted(node: ast.AST | None) -> str | None:
    """`x`, `self.x` or `table["x"]`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return f"{node.value.id}[{key!r}]" if isinstance(key, str) else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return None


def rows_of(value: ast.expr) -> str | None:
    """The name behind conversions and cuts, which keep the order of rows."""
    return dotted(_bare(value))


def _bare(value: ast.expr) -> ast.expr:
    """`torch.tensor(x[:80]).float()` without all that."""
    while True:
        inner = _within(value)
        if inner is None:
            return value
        value = inner


def _within(value: ast.expr) -> ast.expr | None:
    """What is cut or converted; None for anything else."""
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Slice):
        return value.value
    if isinstance(value, ast.Attribute) and value.attr == "values":  # of pandas
        return value.value
    if not isinstance(value, ast.Call) or called(value) not in _OF_ROWS:
        return None
    if isinstance(value.func, ast.Attribute) and called(value) in CONVERTING:
        return value.func.value
    return value.args[0] if value.args else None


def _cut(value: ast.expr) -> str | None:
    """How the rows are cut, with something that is no constant in it."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return None
    names = any(isinstance(node, ast.Name) for node in ast.walk(value.slice))
    return ast.dump(value.slice) if names else None
