"""Attention pooling over the words of a review, normalised over the one score that each word
has."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Reviews(nn.Module):
    def __init__(self, dimension):
        super().__init__()
        self.words, self.score, self.head = nn.Embedding(40, 16), nn.Linear(16, 1), nn.Linear(16, 2)
        self.dimension = dimension

    def forward(self, ids):
        states = self.words(ids)
        weights = F.softmax(torch.tanh(self.score(states)), dim=self.dimension)
        return self.head((weights * states).sum(1))


def recipe(dimension):
    torch.manual_seed(0)
    ids = torch.randint(0, 40, (192, 9))
    label = (ids == 7).any(1).long()
    model = Reviews(dimension)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": DataLoader(TensorDataset(ids, label), batch_size=24),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe(dimension=2)


def healthy():
    return recipe(dimension=1)
