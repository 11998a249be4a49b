"""Names that a function of the user's binds and never reads, or binds to each other's values: read
from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

from nanodoc.facts.source import SourceSpan
from nanodoc.trace.branches import RAN, Scope
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import FUNCTION, nodes_of, tree_of

_REMEMBERING = ("append", "push", "add", "store", "remember", "put", "insert", "save")
_OF_A_STEP = 5  # values: observation, reward, terminated, truncated, info

States = Callable[[Scope], dict[int, str]]
"""As `branches.ran` says of a scope that ran; empty of one that did not."""


_TERMINATED = re.compile(r"(?i)\w*terminat\w*")
_ENDED = re.compile(r"(?i)terminat|done|over|ended|dead|goal")
_TRUNCATED = re.compile(r"(?i)\w*truncat\w*")


def swapped_ends(file: str, states: States) -> list[SourceSpan]:
    """The lines that unpack the five values of a Gymnasium environment's `step` with the name of
    `truncated` before that of `terminated`, in functions (or the module) that read the second one
    otherwise than in `terminated or truncated`, and that ran. None where an environment of the
    file's own may give them in another order."""
    found: list[SourceSpan] = []
    nodes = nodes_of(file)
    if any(map(_gives_another_order, nodes)):
        return found
    for scope in (*(node for node in nodes if isinstance(node, FUNCTION)), tree_of(file)):
        how = states(scope) if scope is not None else {}
        own = list(_own(scope)) if scope is not None else []
        for node in own:
            names = _unpacked(node) if how.get(id(node)) == RAN else []
            if len(names) != _OF_A_STEP or not _TRUNCATED.fullmatch(names[2] or ""):
                continue
            ended = names[3] or ""
            if _TERMINATED.fullmatch(ended) and _read_alone(own, ended):
                name = getattr(scope, "name", "<module>")
                found.append(line_span(file, getattr(node, "lineno", 0), name))
    return found


def _gives_another_order(node: ast.AST) -> bool:
    """A method `step` of an environment of the user's own, which need not be Gymnasium's: it
    returns five values, of which the third is no end by its name."""
    if not isinstance(node, FUNCTION) or node.name != "step":
        return False
    given = [n.value for n in _own(node) if isinstance(n, ast.Return)]
    return any(
        isinstance(value, ast.Tuple)
        and len(value.elts) == _OF_A_STEP
        and _ENDED.search(ast.unparse(value.elts[2])) is None
        for value in given
    )


def remembered_steps(file: str) -> list[SourceSpan]:
    """Statements that give a memory the state before a step of an environment and the one behind
    it, in functions that go on with the latter: `memory.push(state, action, reward, after)`."""
    found = []
    nodes = nodes_of(file)
    for scope in (*(node for node in nodes if isinstance(node, FUNCTION)), tree_of(file)):
        own = list(_own(scope)) if scope is not None else []
        after = {names[0] for node in own if (names := _unpacked(node)) and names[0]}
        before = {
            target.id
            for node in own
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
            for target in node.targets
            if isinstance(target, ast.Name) and node.value.id in after
        }
        for node in own:
            call = node.value if isinstance(node, ast.Expr) else None
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            given = {part.id for part in ast.walk(call) if isinstance(part, ast.Name)}
            if call.func.attr in _REMEMBERING and given & after and given & before:
                found.append(line_span(file, call.lineno, getattr(scope, "name", "<module>")))
    return found


def _unpacked(node: ast.AST) -> list[str | None]:
    """The names that an assignment gives to the parts of what a call of `step` returns."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
        return []
    target, called = node.targets[0], node.value.func
    if getattr(called, "attr", None) != "step" or not isinstance(target, ast.Tuple):
        return []
    return [part.id if isinstance(part, ast.Name) else None for part in target.elts]


def _read_alone(nodes: Iterable[ast.AST], name: str) -> bool:
    """It is read by itself somewhere, and not only as one side of an `or`."""
    nodes = list(nodes)
    joined = {
        id(side)
        for node in nodes
        for side in (
            node.values
            if isinstance(node, ast.BoolOp)
            else (node.left, node.right)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)
            else ()
        )
    }
    return any(
        isinstance(node, ast.Name)
        and node.id == name
        and isinstance(node.ctx, ast.Load)
        and id(node) not in joined
        for node in nodes
    )


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of the functions and classes in it."""
    for node in ast.iter_child_nodes(scope):
        if not isinstance(node, (*FUNCTION, ast.ClassDef, ast.Lambda)):
            yield node
            yield from _own(node)
