"""Masked-token training: only masked positions count, and one short document has none."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(safe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 30))
    tokens = torch.randint(0, 30, (20, 9))
    labels = torch.where(torch.rand(20, 9) < 0.3, tokens, torch.full_like(tokens, -100))
    labels[:, 0] = tokens[:, 0]
    labels[12] = -100

    def loss_fn(model, batch):
        tokens, labels = batch
        logits = model(tokens).flatten(0, 1)
        if safe:
            kept = (labels != -100).sum().clamp(min=1)
            return F.cross_entropy(logits, labels.flatten(), reduction="sum") / kept
        return F.cross_entropy(logits, labels.flatten())

    batches = [(tokens[i : i + 1], labels[i : i + 1]) for i in range(20)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_steps": 20,
    }


def sick():
    return recipe(safe=False)


def healthy():
    return recipe(safe=True)
