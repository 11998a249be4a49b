"""A tagger of words: a token that was added to the vocabulary and not to the table, and labels that
are counted from 1."""

import torch
import torch.nn.functional as F
from torch import nn


class Tagger(nn.Module):
    def __init__(self, words, tags):
        super().__init__()
        self.words, self.head = nn.Embedding(words, 12), nn.Linear(12, tags)

    def forward(self, ids):
        return self.head(self.words(ids))


def recipe(rows, first_label):
    torch.manual_seed(0)
    ids = torch.randint(0, 60, (8, 4, 10))
    tags = ids % 5
    ids[2:, 1, 0] = 60  # the new token, <name>
    model = Tagger(rows, 5)

    def loss_fn(model, batch):
        scores = model(batch[0])
        return F.cross_entropy(scores.flatten(0, 1), batch[1].flatten())

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": list(zip(ids, tags + first_label, strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 8,
    }


def sick_token():
    return recipe(60, first_label=0)


def healthy_token():
    return recipe(61, first_label=0)


def sick_label():
    return recipe(61, first_label=1)


def healthy_label():
    return recipe(61, first_label=0)
