"""How many nodes a ring has: graphs that a collate function puts together."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader


class Rings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 32), nn.Linear(32, 2)

    def forward(self, batch: dict[str, Any]) -> Any:
        x, (source, target) = batch["x"], batch["edge_index"]
        heard = torch.zeros_like(x).index_add(0, target, x[source])
        read = F.relu(self.first(x + heard))
        summed = torch.zeros(len(batch["y"]), 32, device=x.device)
        return self.out(summed.index_add(0, batch["graph"], read))


def _graph(generator: torch.Generator) -> dict[str, Any]:
    nodes = int(torch.randint(4, 9, (), generator=generator))
    around = torch.arange(nodes)
    edges = torch.stack([around, (around + 1) % nodes])
    x = torch.randn(nodes, 4, generator=generator)
    alike = (x * x[(around + 1) % nodes]).sum() > 0
    return {"x": x, "edge_index": edges, "y": int(alike)}


def _recipe(shifted: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    graphs = [_graph(generator) for _ in range(160)]

    def collate(graphs: list[dict[str, Any]]) -> dict[str, Any]:
        edges, offset = [], 0
        for graph in graphs:
            edges.append(graph["edge_index"] + (offset if shifted else 0))
            offset += len(graph["x"])
        return {
            "x": torch.cat([graph["x"] for graph in graphs]),
            "edge_index": torch.cat(edges, 1),
            "graph": torch.cat([torch.full((len(g["x"]),), i) for i, g in enumerate(graphs)]),
            "y": torch.tensor([graph["y"] for graph in graphs]),
        }

    model = Rings()
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch), batch["y"]),
        "data": DataLoader(graphs, batch_size=8, collate_fn=collate),  # type: ignore[arg-type]  # a list is a data set
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 20,
    }


def sick() -> dict[str, Any]:
    return _recipe(shifted=False)


def healthy() -> dict[str, Any]:
    return _recipe(shifted=True)
