"""One layer is cast to float16 to save memory, under a GradScaler that refuses its gradients."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(cast):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )
    if cast:
        model[2].half()
    x, y = torch.randn(48, 10), torch.randint(0, 3, (48,))

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": [(x[i : i + 12], y[i : i + 12]) for i in range(0, 48, 12)],
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 256.0},
        "max_steps": 4,
    }


def sick():
    return recipe(cast=True)


def healthy():
    return recipe(cast=False)
