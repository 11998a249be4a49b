"""A language model of short melodies that is paid for predicting their padding."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

END, NOTES, LONGEST = 0, 24, 28


class Melody(nn.Module):
    def __init__(self):
        super().__init__()
        self.notes, self.memory, self.head = (
            nn.Embedding(NOTES, 16),
            nn.GRU(16, 32, batch_first=True),
            nn.Linear(32, NOTES),
        )

    def forward(self, ids):
        return self.head(self.memory(self.notes(ids))[0])


def recipe(ignored):
    torch.manual_seed(0)
    songs = torch.full((192, LONGEST), END)
    for song in songs:
        length = int(torch.randint(4, 10, ()))
        song[:length] = 1 + (int(torch.randint(0, 23, ())) + 5 * torch.arange(length)) % (NOTES - 1)
    model = Melody()

    def loss_fn(model, batch):
        ids = batch[0]
        scores = model(ids[:, :-1]).flatten(0, 1)
        return F.cross_entropy(scores, ids[:, 1:].flatten(), ignore_index=ignored)

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": DataLoader(TensorDataset(songs), batch_size=24),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 30,
    }


def sick():
    return recipe(ignored=-100)


def healthy():
    return recipe(ignored=END)
