"""Graphs that a collate function of the user's puts together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from nanodoc.examination.joined_graphs import unshifted_edges

torch.manual_seed(0)


@dataclass
class Graph:
    edge_index: torch.Tensor
    num_nodes: int
    label: int


SIZES = [int(n) for n in torch.randint(4, 9, (64,))]
GRAPHS = [Graph(torch.randint(n, (2, 2 * n)), n, int(n > 6)) for n in SIZES]


def collate(graphs: list[Graph]) -> dict[str, Any]:
    edges = []
    for graph in graphs:
        edges.append(graph.edge_index)  # joins
    return {
        "edges": torch.cat(edges, 1),
        "graph": torch.cat([torch.full((g.num_nodes,), i) for i, g in enumerate(graphs)]),
        "y": torch.tensor([graph.label for graph in graphs]),
    }


def shifted(graphs: list[Graph]) -> dict[str, Any]:
    batch, offset, edges = collate(graphs), 0, []
    for graph in graphs:
        edges.append(graph.edge_index + offset)
        offset += graph.num_nodes
    return {**batch, "edges": torch.cat(edges, 1)}


def listed(graphs: list[Graph]) -> dict[str, Any]:
    """Graphs that stay apart."""
    batch = collate(graphs)
    return {**batch, "edges": [graph.edge_index for graph in graphs]}


def edges_only(graphs: list[Graph]) -> dict[str, Any]:
    """Edges of one graph that all samples share: nothing tells of further nodes."""
    batch = collate(graphs)
    return {"edges": batch["edges"], "y": batch["y"]}


@pytest.mark.parametrize(
    ("collator", "found"), [(collate, True), (shifted, False), (listed, False), (edges_only, False)]
)
def test_edges(collator: Any, found: bool) -> None:
    seen = unshifted_edges(GRAPHS, collator)
    assert (seen is not None) == found
    if seen is not None:
        assert seen.line is not None
        assert "# joins" in seen.line.code
        assert (seen.graphs, seen.nodes) == (6, sum(SIZES[:6]))
