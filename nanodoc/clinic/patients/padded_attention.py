"""Hand-written attention over padded sets; one set is empty."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class SetEncoder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.query, self.key, self.value, self.head = (nn.Linear(width, width) for _ in range(4))

    def forward(self, items, absent):
        scores = self.query(items) @ self.key(items).transpose(1, 2) / math.sqrt(items.shape[-1])
        scores = scores.masked_fill(absent[:, None, :], float("-inf"))
        weights = F.softmax(scores, dim=-1)
        return self.head((weights @ self.value(items)).mean(1))


def recipe(keep_first):
    torch.manual_seed(0)
    model = SetEncoder()
    items, y = torch.randn(48, 6, 16), torch.randn(48, 16)
    lengths = torch.randint(1, 7, (48,))
    lengths[29] = 0
    absent = torch.arange(6)[None, :] >= lengths[:, None]
    if keep_first:
        absent[:, 0] = False

    def loss_fn(model, batch):
        items, absent, y = batch
        return F.mse_loss(model(items, absent), y)

    batches = [(items[i : i + 12], absent[i : i + 12], y[i : i + 12]) for i in range(0, 48, 12)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "max_steps": 4,
    }


def sick():
    return recipe(keep_first=False)


def healthy():
    return recipe(keep_first=True)
