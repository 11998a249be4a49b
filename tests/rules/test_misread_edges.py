"""Edges of a graph, made of a list of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose, line_of, nanodoc

CODE = "ND143"
PEOPLE = 20
Rows = Callable[[torch.Tensor], torch.Tensor]


def reshaped(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.reshape(2, -1)


def transposed(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.t().contiguous()


def codes(rows: Rows, *, both_ways: bool = True, number: int = 60) -> set[str]:
    torch.manual_seed(0)
    one = torch.randint(0, PEOPLE, (number,))
    pairs = torch.stack([one, (one + torch.randint(1, PEOPLE, (number,))) % PEOPLE], 1)
    if both_ways:
        pairs = torch.stack([pairs, pairs.flip(1)], 1).flatten(0, 1)
    edges, people = rows(pairs), torch.randn(PEOPLE, 4)

    def loss_fn(model: nn.Module, labels: torch.Tensor) -> torch.Tensor:
        known, knows = edges[0], edges[1]
        sums = torch.zeros_like(people).index_add(0, knows, people[known])
        return F.cross_entropy(model(people + sums), labels)

    model = nn.Linear(4, 2)
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=[torch.arange(PEOPLE) % 2],
        optimizer=torch.optim.Adam(model.parameters(), 1e-2),
    )
    return {finding.code for finding in diagnose(recipe, 10)}


def test_pairs_that_are_reshaped() -> None:
    assert CODE in codes(reshaped)


@pytest.mark.parametrize("both_ways", [True, False])
def test_pairs_that_are_transposed(both_ways: bool) -> None:
    assert CODE not in codes(transposed, both_ways=both_ways)


def test_where_nothing_tells() -> None:
    """Edges in one direction, and few of them."""
    assert CODE not in codes(reshaped, both_ways=False)
    assert CODE not in codes(reshaped, number=5)


TRAINING = """
net, people = nn.Linear(4, 2), torch.randn(20, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for _ in range(10):
    sums = torch.zeros_like(people).index_add(0, edges[1], people[edges[0]])
    optimizer.zero_grad()
    nn.functional.cross_entropy(net(people + sums), torch.arange(20) % 2).backward()
    optimizer.step()
"""
NETWORKX = """
import torch
from torch import nn

class Graph:  # as networkx gives its edges
    edges = [(i, (i + 1 + i % 3) % 20) for i in range(20)]

def edges_of(graph):
    pairs = torch.tensor(list(graph.edges), dtype=torch.long)
    return {rows}

torch.manual_seed(0)
edges = edges_of(Graph())
"""


def lines_told(script: Path) -> list[int]:
    nanodoc("run", "--output-format", "json", "--output", "r.json", script.name, cwd=script.parent)
    found = json.loads((script.parent / "r.json").read_text())["findings"]
    return [f["culprit"]["location"]["line"] for f in found if f["code"] == CODE]


@pytest.mark.parametrize(
    ("rows", "told"), [("pairs.reshape(2, -1)", True), ("pairs.t().reshape(2, -1)", False)]
)
def test_edges_of_networkx(tmp_path: Path, rows: str, told: bool) -> None:
    """Each edge stands there once: the numbers do not tell, and the source does."""
    path = tmp_path / "train.py"
    path.write_text(NETWORKX.format(rows=rows) + TRAINING)
    assert lines_told(path) == ([line_of(path, "return pairs")] if told else [])


LISTED = """
import torch
from torch import nn

def edges_of():
    pairs = []
    for i in range(20):
        pairs.append((i, (i + 1 + i % 3) % 20))
    edges = {rows}
    return edges.unique(dim=1)  # as a library sorts them: the numbers do not tell

torch.manual_seed(0)
edges = edges_of()
"""


@pytest.mark.parametrize(
    ("rows", "told"),
    [("torch.tensor(pairs).reshape(2, -1)", True), ("torch.tensor(pairs).t()", False)],
)
def test_a_list_of_pairs(tmp_path: Path, rows: str, told: bool) -> None:
    path = tmp_path / "train.py"
    path.write_text(LISTED.format(rows=rows) + TRAINING)
    assert lines_told(path) == ([line_of(path, "edges = torch")] if told else [])
