"""What the statements of a loop's body do with names: draw from them, read and bind them."""

from __future__ import annotations

import ast

# they draw from an iterator in C code
_CONSUMERS = {
    *("list", "tuple", "set", "dict", "frozenset", "sorted", "sum", "min", "max", "any", "all"),
    *("zip", "map", "filter", "enumerate", "islice", "chain", "from_iterable", "cycle", "deque"),
    *("takewhile", "dropwhile", "stack", "cat", "array", "fromiter", "join", "extend", "update"),
}


def drawn_unseen(body: list[ast.stmt]) -> set[str]:
    """Names that are drawn from where no mark is: in C code (`list(name)`, `islice(name, 4)`), in a
    comprehension, by an unpacking, by a method of the iterator's own."""
    found: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            drawn: list[ast.AST] = []
            if isinstance(node, ast.comprehension):
                drawn = [node.iter]
            elif isinstance(node, ast.Starred) or (
                isinstance(node, ast.Attribute) and node.attr in ("send", "throw", "__next__")
            ):
                drawn = [node.value]
            elif isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                drawn = list(node.args) if called in _CONSUMERS else []
            found.update(inner.id for inner in drawn if isinstance(inner, ast.Name))
    return found


def order_of_names(body: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """(names bound before they are read, names read first and bound later), as far as the body's
    own statements tell: what a branch binds is not bound for sure."""
    read: set[str] = set()
    bound: set[str] = set()
    maybe: set[str] = set()
    for statement in body:
        loads = {
            n.id
            for n in ast.walk(statement)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
        }
        stores = {
            n.id
            for n in ast.walk(statement)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            loads.add(statement.target.id)
        sure = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.With))
        if isinstance(statement, ast.With):
            inner, _ = order_of_names(statement.body)
            loads -= inner
        read |= loads - bound
        if sure:
            bound |= stores - read
        maybe |= stores
    return bound, read & maybe
