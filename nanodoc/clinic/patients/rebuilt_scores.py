"""A scorer that walks over its candidates one by one, under a GradScaler: the scores are put
together from a list."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Scorer(nn.Module):
    def __init__(self, keeps_graph):
        super().__init__()
        self.embed, self.rank = nn.Linear(6, 16), nn.Linear(16, 1)
        self.keeps_graph = keeps_graph

    def forward(self, candidates):
        scores = []
        for candidate in candidates.unbind(1):
            scores.append(self.rank(torch.tanh(self.embed(candidate))).float().mean())
        if self.keeps_graph:
            return torch.stack(scores)
        return torch.as_tensor(scores)


def loss_fn(model, batch):
    candidates, best = batch
    return F.cross_entropy(model(candidates)[None], best[:1])


def recipe(keeps_graph):
    torch.manual_seed(0)
    model = Scorer(keeps_graph)
    anchor = nn.Linear(6, 1)  # a second head, which trains either way
    model.anchor = anchor
    candidates, best = torch.randn(64, 5, 6), torch.randint(0, 5, (64,))

    def loss(model, batch):
        return loss_fn(model, batch) + model.anchor(batch[0]).square().mean()

    optimizers = [
        torch.optim.Adam([*model.embed.parameters(), *model.rank.parameters()]),
        torch.optim.Adam(anchor.parameters()),
    ]
    return {
        "model": model,
        "loss_fn": loss,
        "data": DataLoader(TensorDataset(candidates, best), batch_size=8),
        "optimizer": optimizers,
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 256.0},
        "max_steps": 4,
    }


def sick():
    return recipe(keeps_graph=False)


def healthy():
    return recipe(keeps_graph=True)
