"""A classifier with a hand-written cross entropy, and logits that grow far apart."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(fused):
    torch.manual_seed(0)
    model = nn.Linear(10, 5)
    x, y = torch.randn(60, 10), torch.randint(0, 5, (60,))
    x[41] *= 400.0  # an outlier: its logits lie hundreds apart

    def loss_fn(model, batch):
        x, y = batch
        logits = model(x)
        logp = F.log_softmax(logits, dim=1) if fused else torch.log(F.softmax(logits, dim=1))
        return -logp.gather(1, y[:, None]).mean()

    batches = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 60, 20)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-4),
        "max_steps": 6,
    }


def sick():
    return recipe(fused=False)


def healthy():
    return recipe(fused=True)
