"""A ranking loss averaged over hard negatives, of which an easy batch has none."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(guarded):
    torch.manual_seed(0)
    model = nn.Linear(5, 1)
    x, y = torch.randn(48, 5), (torch.rand(48) > 0.5).float()
    y[24:32] = 1.0  # a batch without negatives

    def loss_fn(model, batch):
        x, y = batch
        per_item = F.binary_cross_entropy_with_logits(model(x).squeeze(1), y, reduction="none")
        negatives = per_item[y == 0]
        if guarded and not len(negatives):
            return per_item.mean()
        return per_item.mean() + negatives.mean()

    batches = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 48, 8)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "max_steps": 6,
    }


def sick():
    return recipe(guarded=False)


def healthy():
    return recipe(guarded=True)
