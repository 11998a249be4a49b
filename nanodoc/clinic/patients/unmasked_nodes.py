"""The nodes of one graph, a part of which is for training. The graph is as torch_geometric's."""

import torch
import torch.nn.functional as F
from torch import nn


class Graph:
    __module__ = "torch_geometric.data.data"

    def __init__(self, **parts):
        vars(self).update(parts)

    def to_dict(self):
        return dict(vars(self))


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x, edges):
        around = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        return self.second(torch.relu(self.first(x + around)))


def recipe(masked):
    torch.manual_seed(0)
    y = torch.randint(0, 3, (120,))
    x = F.one_hot(y, 6).float() + 0.5 * torch.randn(120, 6)
    edges = torch.randint(0, 120, (2, 300))
    masks = {"train_mask": torch.arange(120) < 40, "test_mask": torch.arange(120) >= 80}
    graph = Graph(x=x, y=y, edges=edges, **masks)
    model = Layers()

    def loss_fn(model, batch):
        device = model.first.weight.device
        scores, wanted = model(graph.x.to(device), graph.edges.to(device)), graph.y.to(device)
        if masked:
            mask = graph.train_mask.to(device)
            return F.cross_entropy(scores[mask], wanted[mask])
        return F.cross_entropy(scores, wanted)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [graph] * 24,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe(False)


def healthy():
    return recipe(True)
