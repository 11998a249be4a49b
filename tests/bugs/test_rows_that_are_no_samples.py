"""Rows of an index tensor were called samples of the batch where they were edges of a graph,
positions, or items of bags."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose


def first(model: nn.Module, data: Any, loss_fn: Any, steps: int = 3) -> Finding:
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    return diagnose(recipe, steps)[0]


def test_edges_of_a_graph() -> None:
    graphs = [
        {"nodes": torch.randn(4, 3), "edges": torch.tensor([[0, 1, 2], [1, 2, 3]])}
        for _ in range(3)
    ]
    graphs[1]["edges"] = torch.tensor([[0, 1, 5], [1, 2, 3]])
    loader: Any = DataLoader(graphs, batch_size=1, collate_fn=lambda rows: rows[0])  # type: ignore[arg-type]
    found = first(
        nn.Linear(3, 3),
        loader,
        lambda model, graph: model(graph["nodes"])[graph["edges"][0]].pow(2).mean(),
    )
    assert (found.code, found.culprit.samples, found.culprit.dataset_indices) == ("ND102", (), (1,))


def test_positions() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(9, 4), nn.Embedding(6, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])

    found = first(
        Encoder(),
        [torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 8, dtype=torch.long)],
        lambda m, b: m(b).pow(2).mean(),
    )
    assert (found.code, found.culprit.module, found.culprit.samples) == ("ND102", "positions", ())


def test_bags_of_items() -> None:
    rows = [[1, 2], [3], [4, 5, 99], [6]]
    batch = {
        "items": torch.tensor([item for row in rows for item in row]),
        "starts": torch.tensor([0, 2, 3, 6]),
        "bought": torch.zeros(4, 4),
        "weight": torch.ones(4),
    }
    found = first(
        nn.EmbeddingBag(50, 4),
        [batch],
        lambda m, b: (m(b["items"], b["starts"]) - b["bought"]).pow(2).mean(),
    )
    assert (found.code, found.evidence[1], found.culprit.samples) == (
        "ND102",
        ("position", "[5]"),
        (2,),
    )
