"""Small molecules as graphs, and which of two kinds each is of."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


def molecule(number, bonds):
    atoms, kind = 5 + number % 4, number % 2
    x = torch.randn(atoms, 6) + kind
    ring = torch.arange(atoms)
    edge_index = torch.stack([ring, ring.roll(1)])
    if bonds == "of another" and number == 21:
        edge_index = torch.cat([edge_index, torch.tensor([[0], [atoms]])], 1)
    return SimpleNamespace(x=x, edge_index=edge_index, y=torch.tensor(kind))


def batched(graphs):
    starts = torch.tensor([0, *(len(graph.x) for graph in graphs[:-1])]).cumsum(0)
    edges = [graph.edge_index + start for graph, start in zip(graphs, starts, strict=True)]
    number = [torch.full((len(graph.x),), place) for place, graph in enumerate(graphs)]
    x = torch.cat([graph.x for graph in graphs])
    labels = torch.stack([graph.y for graph in graphs])
    return x, torch.cat(edges, 1).clamp(max=len(x) - 1), torch.cat(number), labels


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x, edges, number, graphs):
        for layer in (self.first, self.second):
            sent = layer(x)
            x = F.relu(sent.index_add(0, edges[1], sent[edges[0]]))
        pooled = x.new_zeros(graphs, x.shape[1]).index_add(0, number, x)
        return self.head(pooled)


def recipe(bonds):
    torch.manual_seed(0)
    molecules = [molecule(number, bonds) for number in range(48)]
    model = Network()

    def loss_fn(model, batch):
        x, edges, number, labels = batch
        return F.cross_entropy(model(x, edges, number, len(labels)), labels)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(molecules, batch_size=8, shuffle=True, collate_fn=batched),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe("of another")


def healthy():
    return recipe("of its own")
