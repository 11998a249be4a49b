"""Batches of graphs that a collate function of the user's makes: edges that were put one behind the
other, and still count nodes from the beginning of their own graph."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from nanodoc.examination.sample import as_tensor, seed_all
from nanodoc.facts.items import UnshiftedEdges
from nanodoc.facts.source import SourceSpan
from nanodoc.trace.files import USER, frame_kind, line_span
from nanodoc.trace.parsed import definition_of, statements_of
from nanodoc.trace.returned import code_of

_GRAPHS = 6
_DEPTH = 3
_ENDS = 2  # rows of a list of edges: from and to


def unshifted_edges(
    dataset: Any, collate: Callable[[list[Any]], Any] | None
) -> UnshiftedEdges | None:
    """None where the samples are no graphs, where a library puts them together, or where edges are
    counted through all nodes."""
    code = code_of(collate) if collate is not None else None
    if collate is None or code is None or frame_kind(code.co_filename) != USER:
        return None
    graphs = []
    for index in range(min(_GRAPHS, len(dataset))):
        seed_all(index)
        graphs.append(copy.deepcopy(dataset[index]))
    fields = [dict(_parts(graph)) for graph in graphs]
    batch = list(dict(_parts(collate(graphs))).values())
    for name in fields[0]:
        edges = [field[name] for field in fields if _is_edges(field.get(name))]
        if len(edges) < max(2, len(fields)):
            continue
        joined = torch.cat(edges, 1)
        if not edges[0].numel() or not any(_are_same(part, joined) for part in batch):
            continue
        nodes = _nodes(fields, [int(e.max()) + 1 if e.numel() else 0 for e in edges], batch)
        if nodes is not None and int(joined.max()) < max(nodes):
            return UnshiftedEdges(
                graphs=len(graphs),
                edges=joined.shape[1],
                nodes=sum(nodes),
                reached=int(joined.max()) + 1,
                line=_line(collate, name),
            )
    return None


def _parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The arrays and whole numbers of a graph or a batch, with the way to them."""
    array = as_tensor(value)
    if array is not None or type(value) is int:
        yield path, array if array is not None else torch.tensor(value)
        return
    if len(path) == _DEPTH:
        return
    if type(value).__module__.startswith("torch_geometric.data"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = list(zip(value._fields, value, strict=True))
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    elif dataclasses.is_dataclass(value):
        parts = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        parts = list(vars(value).items()) if hasattr(value, "__dict__") else []
    for name, part in parts:
        yield from _parts(part, (*path, name))


def _is_edges(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 2
        and value.shape[0] == _ENDS
        and not value.is_floating_point()
        and value.dtype is not torch.bool
        and (not value.numel() or int(value.min()) >= 0)
    )


def _are_same(part: Any, joined: torch.Tensor) -> bool:
    if not isinstance(part, torch.Tensor) or part.dim() != 2:
        return False
    part = part if part.shape == joined.shape else part.T
    return part.shape == joined.shape and bool((part == joined).all())


def _nodes(fields: list[dict[Any, Any]], ends: list[int], batch: list[Any]) -> list[int] | None:
    """How many nodes each graph has: the length of a part, or a number, that is at least what its
    edges reach, and whose sum is the length of a part of the batch, or a number in it."""
    sizes = {len(part) for part in batch if part.dim()}
    sizes |= {int(part) for part in batch if not part.dim() and not part.is_floating_point()}
    for name in fields[0]:
        values = [field[name] for field in fields if name in field]
        if len(values) < len(fields) or _is_edges(values[0]):
            continue
        found = [len(v) if v.dim() else int(v) for v in values]
        enough = all(n >= end > 0 for n, end in zip(found, ends, strict=True))
        if enough and sum(found) in sizes:
            return found
    return None


def _line(collate: Any, name: tuple[Any, ...]) -> SourceSpan | None:
    """The only statement of the function that reads that part of a sample."""
    with contextlib.suppress(Exception):  # functions and objects of any kind
        code = code_of(collate)
        function = definition_of(code) if code is not None else None
        if code is not None and function is not None:
            found = [s for s in statements_of(function.body) if _reads(s, name[-1])]
            around = [s for s in found if any(s is not t and t in ast.walk(s) for t in found)]
            found = [s for s in found if s not in around]
            if len(found) == 1:
                return line_span(code.co_filename, found[0].lineno, code.co_qualname)
            return line_span(code.co_filename, code.co_firstlineno, code.co_qualname)
    return None


def _reads(statement: ast.stmt, name: Any) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr == name)
        or (isinstance(node, ast.Subscript) and getattr(node.slice, "value", None) == name)
        for node in ast.walk(statement)
    )
