"""A sentence encoder whose mask was made of ones, beside ids that are padded."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)

    def forward(self, ids, mask):
        states = self.words(ids) * mask.unsqueeze(-1)
        return self.head(states.sum(1) / mask.sum(1, keepdim=True))


def recipe(right):
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (192, 12))
    for row in ids:
        row[int(torch.randint(4, 13, ())) :] = 0
    label = ids[:, 0] % 3
    mask = (ids != 0).float() if right else torch.ones(ids.shape)
    model = Encoder()
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0], batch[1]), batch[2]),
        "data": DataLoader(TensorDataset(ids, mask, label), batch_size=24),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 24,
    }


def sick():
    return recipe(right=False)


def healthy():
    return recipe(right=True)
