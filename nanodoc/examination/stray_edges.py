"""Graphs of a data set whose edges lead to nodes that they do not have."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import torch

from nanodoc.facts.items import StrayEdge

EDGES = "edge_index"
"""How torch_geometric names the (2, edges) tensor of a graph's edges, from row 0 to row 1."""
_NODES = "x"  # the features of its nodes, (nodes, features)


def stray_edge(dataset: Any, until: float) -> StrayEdge | None:
    """The first graph with an edge from or to a node that is not there; None where no sample is a
    graph, or the time (time.monotonic) is over before one is met."""
    for index in range(len(dataset)):
        if time.monotonic() > until:
            return None
        graph = graph_of(dataset[index])
        edges, nodes = (_part(graph, EDGES), _part(graph, _NODES))
        if not _is_edges(edges) or not isinstance(nodes, torch.Tensor) or nodes.dim() < 2:
            return None
        stray = ((edges < 0) | (edges >= len(nodes))).any(0)
        if bool(stray.any()):
            first = int(stray.nonzero()[0])
            return StrayEdge(
                index=index,
                part=EDGES,
                nodes=len(nodes),
                edges=edges.shape[1],
                stray=int(stray.sum()),
                edge=(int(edges[0, first]), int(edges[1, first])),
            )
    return None


def edges_of(sample: Any) -> torch.Tensor | None:
    """The edges of the graph that a sample is."""
    edges = _part(graph_of(sample), EDGES)
    return edges if _is_edges(edges) else None


def graph_of(sample: Any) -> Any:
    """The sample itself, or its first part that has edges: (graph, label)."""
    parts = sample if isinstance(sample, (list, tuple)) else (sample,)
    return next((part for part in parts if _part(part, EDGES) is not None), None)


def _part(graph: Any, name: str) -> Any:
    with contextlib.suppress(Exception):  # any object's own attributes
        if isinstance(graph, Mapping):
            return graph.get(name)
        return getattr(graph, name, None)
    return None


def _is_edges(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.dim() == 2
        and value.shape[0] == 2
        and value.shape[1] > 0
        and not value.is_floating_point()
        and value.dtype != torch.bool
    )
