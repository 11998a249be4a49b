"""Edges of a graph, made of a list of pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

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
