"""Graphs of a data set, with edges inside of them and out of them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from nanodoc.examination.stray_edges import stray_edge
from nanodoc.facts.items import StrayEdge


def found(samples: Any) -> StrayEdge | None:
    return stray_edge(samples, time.monotonic() + 10)


def graph(edges: list[list[int]], nodes: int = 4) -> SimpleNamespace:
    return SimpleNamespace(x=torch.randn(nodes, 3), edge_index=torch.tensor(edges))


INSIDE, OUT, NEGATIVE = [[0, 1], [1, 0]], [[0, 1], [1, 4]], [[0, -1], [1, 0]]


@pytest.mark.parametrize("edges", [OUT, NEGATIVE], ids=["behind", "negative"])
@pytest.mark.parametrize("form", ["object", "dict", "pair"])
def test_an_edge_that_leads_out(edges: list[list[int]], form: str) -> None:
    samples = [graph(INSIDE), graph(edges)]
    wrapped: list[Any] = {
        "object": list(samples),
        "dict": [vars(sample) for sample in samples],
        "pair": [(sample, 1) for sample in samples],
    }[form]
    told = found(wrapped)
    assert told is not None
    assert (told.index, told.stray, told.edges, told.nodes) == (1, 1, 2, 4)
    assert told.edge == (edges[0][1], edges[1][1])


@pytest.mark.parametrize(
    "sample",
    [
        graph(INSIDE, nodes=9),  # nodes without edges
        SimpleNamespace(x=torch.randn(4, 3), edge_index=torch.zeros(2, 0, dtype=torch.long)),
        SimpleNamespace(x=torch.randn(4, 3), edge_index=torch.tensor([[0.0], [9.0]])),
        SimpleNamespace(x=(torch.randn(4, 3), torch.randn(9, 3)), edge_index=torch.tensor(OUT)),
        SimpleNamespace(x=None, edge_index=torch.tensor(OUT)),
        (torch.randn(3), 7),
        7,
    ],
    ids=["isolated", "no edges", "no indices", "two kinds", "no features", "no graph", "number"],
)
def test_what_is_no_graph_of_this_kind_is_left_alone(sample: Any) -> None:
    assert found([sample] * 3) is None


def test_the_look_ends_in_time() -> None:
    assert stray_edge([graph(OUT)], time.monotonic() - 1) is None
