"""A gated feed-forward under float16 autocast, loaded with wide weights, passes 65504."""

import torch
import torch.nn.functional as F
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, width, wide):
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        with torch.no_grad():
            self.down.weight.mul_(60.0 if wide else 0.1)

    def forward(self, x):
        return self.down(self.up(x) * F.gelu(self.gate(x)))


def recipe(wide):
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(20, 32),
            "ff": FeedForward(32, wide),
            "norm": nn.LayerNorm(32),
            "head": nn.Linear(32, 3),
        }
    )
    with torch.no_grad():
        model["embed"].weight[19].mul_(100.0)  # a rare token with a long embedding
    tokens, y = torch.randint(0, 19, (48, 7)), torch.randint(0, 3, (48,))
    tokens[30, 2] = 19

    def loss_fn(model, batch):
        x = model["embed"](batch[0])
        x = model["norm"](x + model["ff"](x))
        return F.cross_entropy(model["head"](x.mean(1)).float(), batch[1])

    batches = [(tokens[i : i + 8], y[i : i + 8]) for i in range(0, 48, 8)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-4),
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 64.0},
        "max_steps": 6,
    }


def sick():
    return recipe(wide=True)


def healthy():
    return recipe(wide=False)
