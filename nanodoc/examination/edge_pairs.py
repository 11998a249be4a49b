"""Lists of pairs of nodes that the user's source reshapes to two rows, and does not transpose."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

import torch

from nanodoc.examination.running import running_scopes, scope_of
from nanodoc.facts.source import SourceSpan
from nanodoc.measure.edges import is_misread
from nanodoc.recipe.build_facts import BuildFacts
from nanodoc.recipe.recipe import Recipe
from nanodoc.tensors.nested import graphs_among, tensor_leaves
from nanodoc.tensors.plain import is_plain
from nanodoc.trace.files import line_span
from nanodoc.trace.named_numbers import is_reshape_to
from nanodoc.trace.parsed import FUNCTION, nodes_of, own_nodes
from nanodoc.trace.row_orders import in_order
from nanodoc.vocabulary.source import MAKING_TENSORS, TRANSPOSING

_BESIDE = (*TRANSPOSING, "zip", "unzip")


def misread_edges(batches: Iterable[Any]) -> int | None:
    """How many edges a graph of the batch has that was read row by row; None where none was."""
    whole = [*batches]
    for _, tensor in tensor_leaves([*whole, *graphs_among(whole)]):
        if is_plain(tensor) and is_misread(tensor):
            return int(tensor.shape[1])
    return None


def reshaped_pairs_at(recipe: Recipe, build: BuildFacts) -> SourceSpan | None:
    """Where the edges of a graph become two rows by a reshape, which networkx gives as pairs
    (`graph.edges`), or which a list holds as pairs; in functions that made the data or run in the
    step."""
    running = build.makers | running_scopes(recipe)
    for file in sorted({file for file, _ in running}):
        if not any(isinstance(n, ast.Call) and is_reshape_to(n, 2) for n in nodes_of(file)):
            continue
        for scope in nodes_of(file):
            if not isinstance(scope, (*FUNCTION, ast.Module)):
                continue
            if scope_of(file, scope) in running:
                line = _in_scope(scope)
                if line is not None:
                    return line_span(file, line, getattr(scope, "name", "<module>"))
    return None


def _in_scope(scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> int | None:
    pairs: set[str] = set()
    lists = _lists_of_pairs(scope)
    for statement in in_order(scope.body):
        edges = isinstance(statement, ast.Assign) and "edge" in ast.unparse(statement.targets[0])
        for node in own_nodes(statement):
            if isinstance(node, ast.Call) and is_reshape_to(node, 2):
                given = node.func.value if isinstance(node.func, ast.Attribute) else None
                held = isinstance(given, ast.Name) and given.id in pairs
                if edges and given is not None and _is_tensor_of(given, lists):
                    return node.lineno
                if held or (given is not None and _are_pairs(given)):
                    return node.lineno
        if isinstance(statement, ast.Assign):
            names = {target.id for target in statement.targets if isinstance(target, ast.Name)}
            pairs = pairs | names if _are_pairs(statement.value) else pairs - names
    return None


def _lists_of_pairs(scope: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> set[str]:
    """The names of lists that are given nothing but pairs, `pairs.append((i, j))`."""
    found: set[str] = set()
    others: set[str] = set()
    for statement in in_order(scope.body):
        for node in own_nodes(statement):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            into, given = node.func.value, node.args[0] if node.args else None
            if node.func.attr not in ("append", "extend", "insert") or not isinstance(
                into, ast.Name
            ):
                continue
            many = node.func.attr == "extend" and isinstance(given, (ast.List, ast.Tuple))
            items = given.elts if many and isinstance(given, (ast.List, ast.Tuple)) else [given]
            pairs = all(isinstance(i, (ast.Tuple, ast.List)) and len(i.elts) == 2 for i in items)
            (found if pairs else others).add(into.id)
    return found - others


def _is_tensor_of(value: ast.expr, lists: set[str]) -> bool:
    """`torch.tensor(pairs)`, `torch.from_numpy(np.array(pairs))`, not turned."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    words = names | {node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute)}
    made = isinstance(value, ast.Call) and bool(words & {*MAKING_TENSORS})
    plain = not any(isinstance(node, (ast.comprehension, ast.keyword)) for node in _nodes(value))
    return made and bool(names & lists) and not words & {*_BESIDE} and plain


def _are_pairs(value: ast.expr) -> bool:
    """`torch.tensor(list(graph.edges))`, not turned."""
    words = {
        getattr(node, "attr", getattr(node, "id", None))
        for node in ast.walk(value)
        if isinstance(node, (ast.Attribute, ast.Name))
    }
    tensor = isinstance(value, ast.Call) and bool(words & {*MAKING_TENSORS})
    plain = not any(isinstance(node, (ast.comprehension, ast.keyword)) for node in _nodes(value))
    return tensor and "edges" in words and not words & {*_BESIDE} and plain


def _nodes(value: ast.expr) -> list[ast.AST]:
    """Those that could make something else of the pairs: a dtype does not."""
    return [n for n in ast.walk(value) if not (isinstance(n, ast.keyword) and n.arg == "dtype")]


def node_masks(values: Iterable[Any]) -> tuple[dict[str, int], int] | None:
    """(how many nodes each mask of the only graph marks, all of its nodes). The masks are boolean
    vectors that have no node in common. None where there are fewer than two, or several graphs."""
    whole = [*values]
    found = []
    for graph in [*(v for v in whole if isinstance(v, dict)), *graphs_among(whole)]:
        masks = {
            str(name): part
            for name, part in graph.items()
            if isinstance(part, torch.Tensor) and part.dtype is torch.bool and part.dim() == 1
        }
        if len(masks) > 1 and len({len(mask) for mask in masks.values()}) == 1:
            found.append(masks)
    if len(found) != 1 or int(torch.stack([*found[0].values()]).sum(0).max()) != 1:
        return None
    (masks,) = found
    return {name: int(mask.sum()) for name, mask in masks.items()}, len(next(iter(masks.values())))
