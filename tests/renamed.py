"""Training scripts whose names mean nothing: `mask`, `discount` and `next_states` become `n1`, `n2` and `n3`.
What is found in a script must not depend on what its author called things; only wording may."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import torch
from torch import nn, utils

_KEPT_KEYS = {
    "dtype",
    "scaler",
    "init_scale",
    "params",
    "lr",
    "betas",
    "eps",
    "momentum",
    "weight_decay",
    "state",
}
"""Keys that torch's optimizers read."""
_OF_LIBRARIES = ("reset", "step", "action_space", "observation_space", "to_dict")
"""Of Gymnasium's environments and torch_geometric's graphs."""
_OTHERS_KEYS = ("transformers", "lightning", "accelerate")
"""Libraries that read keys and attributes of a script's objects by their names."""


def renamed(source: str, kept: Iterable[str] = ()) -> str:
    """The script with all names of its own replaced, on the same lines. `kept` and what torch, Python or a
    library would not find under another name stay; so do names in f-strings. Comments are gone."""
    tree = ast.parse(source)
    names = _names_of(tree, frozenset(kept))
    edits = sorted(_edits(tree, source, names), reverse=True)
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    for row, column, old, new in edits:
        line = lines[row]
        assert line[column : column + len(old)] == old.encode(), (row, old, line)
        lines[row] = line[:column] + new.encode() + line[column + len(old) :]
    return re.sub(rb"(?m)\s# .*$", b"", b"".join(lines)).decode()


@cache
def _known() -> frozenset[str]:
    """What torch, Python and what is built on them look up by name in a script's objects."""
    owners = [
        torch.Tensor,
        torch.optim.Optimizer,
        torch.autograd.Function,
        torch.autograd.graph.Node,
    ]
    owners += [dict, list, str, set, object, *vars(utils.data).values(), *vars(nn).values()]
    owners += [*vars(torch.optim.lr_scheduler).values(), *vars(torch.distributions).values()]
    found: set[str] = {*dir(builtins), *dir(torch), *dir(nn.functional), *_OF_LIBRARIES}
    for owner in owners:
        found.update(dir(owner))
        found.update(getattr(owner, "__annotations__", ()))
        found.update(getattr(owner, "__constants__", ()))
    return frozenset(found)


def _names_of(tree: ast.Module, kept: frozenset[str]) -> dict[str, str]:
    nodes = list(ast.walk(tree))
    own = {name for node in nodes for name in _bound(node)}
    attributes = {name for node in nodes for name in _attributes(node)}
    keys = _keys(nodes) if not _of_others(nodes) else set()
    left = kept | _imported(nodes) | _in_texts(nodes) | _asked_by_others(nodes)
    left |= {name for node in nodes if isinstance(node, ast.MatchAs) for name in (node.name or "",)}
    # an own variable may be called as a method of torch's; an attribute may not
    plain = own - set(dir(builtins)) - _read_of_others(nodes, attributes)
    wanted = {*plain, *(attributes - _known()), *(keys - _KEPT_KEYS)}
    wanted -= attributes & _known()
    wanted = {name for name in wanted - left if not name.startswith("__")}
    return {name: f"n{at}" for at, name in enumerate(sorted(wanted), 1)}


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.FunctionDef | ast.ClassDef) or (
        isinstance(node, ast.ExceptHandler) and node.name
    ):
        yield node.name


def _attributes(node: ast.AST) -> Iterator[str]:
    """What a class of the script's has: methods, fields, and what is set on any object."""
    if isinstance(node, ast.ClassDef):
        for inner in node.body:
            yield from _bound(inner)
            if isinstance(inner, ast.AnnAssign | ast.Assign):
                yield from (name for part in ast.walk(inner) for name in _bound(part))
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.Call) and _called(node) in ("register_buffer", "register_parameter"):
        first = node.args[0] if node.args else None
        if isinstance(first, ast.Constant):
            yield str(first.value)


def _keys(nodes: list[ast.AST]) -> set[str]:
    """Keys of dicts, where nothing outside of the script reads them."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(node.slice.value)
        elif isinstance(node, ast.Dict):
            found |= {key.value for key in node.keys if isinstance(key, ast.Constant)}
    return {key for key in found if isinstance(key, str) and key.isidentifier()}


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _of_others(nodes: list[ast.AST]) -> bool:
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(module.startswith(_OTHERS_KEYS) for module in modules)


def _imported(nodes: list[ast.AST]) -> set[str]:
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    aliases = [alias for node in imports for alias in node.names]
    return {(alias.asname or alias.name).partition(".")[0] for alias in aliases}


def _in_texts(nodes: list[ast.AST]) -> set[str]:
    """Names inside of f-strings: Python 3.11 does not tell their columns."""
    texts = [inner for node in nodes if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)]
    found = {node.id for node in texts if isinstance(node, ast.Name)}
    return found | {node.attr for node in texts if isinstance(node, ast.Attribute)}


def _asked_by_others(nodes: list[ast.AST]) -> set[str]:
    """Keywords of calls of what is not the script's own."""
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    calls = [node for node in nodes if isinstance(node, ast.Call) and _called(node) not in own]
    return {keyword.arg for call in calls for keyword in call.keywords if keyword.arg}


def _read_of_others(nodes: list[ast.AST], attributes: set[str]) -> set[str]:
    """Attributes that are read and that nothing in the script sets."""
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return read - attributes


def _edits(
    tree: ast.Module, source: str, names: Mapping[str, str]
) -> Iterator[tuple[int, int, str, str]]:
    """Row, column in bytes, the old name and the new one."""
    lines = [line.encode() for line in source.splitlines()]
    inside = {
        id(one)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for one in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        found: tuple[int, int, str] | None = None
        if isinstance(node, ast.Name):
            found = node.lineno, node.col_offset, node.id
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            found = node.lineno, node.col_offset, node.arg
        elif isinstance(node, ast.Attribute) and node.end_lineno and node.end_col_offset:
            found = node.end_lineno, node.end_col_offset - len(node.attr), node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            head = re.match(rb"\s*(?:async )?(?:def|class)\s+", lines[node.lineno - 1])
            assert head is not None
            found = node.lineno, head.end(), node.name
        elif isinstance(node, ast.ExceptHandler) and node.name:
            at = lines[node.lineno - 1].index(b" as ") + 4
            found = node.lineno, at, node.name
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.lineno == node.end_lineno
        ):
            found = node.lineno, node.col_offset + 1, node.value
        elif isinstance(node, ast.Global | ast.Nonlocal):
            for name in node.names:
                at = re.search(rb"\b%s\b" % name.encode(), lines[node.lineno - 1])
                if at is not None and name in names:
                    yield node.lineno - 1, at.start(), name, names[name]
        if found is not None and found[2] in names:
            yield found[0] - 1, found[1], found[2], names[found[2]]
