"""Which of two words comes first, told by attention that is written by hand."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 16), nn.Embedding(12, 16)
        self.queries, self.keys, self.values = (nn.Linear(16, 16) for _ in range(3))
        self.out = nn.Linear(16, 2)
        self.dim = dim

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(12, device=ids.device))
        scores = self.queries(x) @ self.keys(x).transpose(-2, -1) / 4
        weights = scores.softmax(self.dim)
        return self.out((weights @ self.values(x)).mean(1))


class Dropping(nn.Module):
    def __init__(self, told):
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.hidden, self.out = nn.Linear(12 * 16, 32), nn.Linear(32, 2)
        self.told = told

    def forward(self, ids):
        hidden = torch.relu(self.hidden(self.words(ids).flatten(1)))
        if self.told:
            return self.out(F.dropout(hidden, 0.2, training=self.training))
        return self.out(F.dropout(hidden, 0.2))


def recipe(model):
    ids = torch.randint(20, (320, 12))
    labels = (ids[:, 0] > ids[:, 5]).long()
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(ids, labels), batch_size=16),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 20,
    }


def sick_queries():
    torch.manual_seed(0)
    return recipe(Reader(dim=-2))


def healthy_queries():
    torch.manual_seed(0)
    return recipe(Reader(dim=-1))


def sick_dropping():
    torch.manual_seed(0)
    return recipe(Dropping(told=False))


def healthy_dropping():
    torch.manual_seed(0)
    return recipe(Dropping(told=True))
