"""Which of two words comes first in a sentence, told by a transformer."""

import torch
import torch.nn.functional as F
from torch import nn


class Reader(nn.Module):
    def __init__(self, positions):
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Embedding(32, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 2)
        self.positions = positions

    def forward(self, ids):
        embedded = self.words(ids) + self.places(self.positions(ids))
        return self.out(self.layer(embedded).mean(1))


def all_zero(ids):
    return torch.zeros_like(ids)


def numbered(ids):
    return torch.arange(ids.shape[1], device=ids.device).expand_as(ids)


def recipe(positions):
    torch.manual_seed(0)
    ids = torch.stack([torch.randperm(28)[:10] + 2 for _ in range(320)])
    first, second = torch.stack([torch.randperm(10)[:2] for _ in range(320)]).T
    rows = torch.arange(320)
    ids[rows, first], ids[rows, second] = 0, 1
    model = Reader(positions)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(ids, (first < second).long()), batch_size=16
        ),
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "max_steps": 20,
    }


def sick():
    return recipe(all_zero)


def healthy():
    return recipe(numbered)
