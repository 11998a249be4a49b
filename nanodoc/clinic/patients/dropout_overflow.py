"""A T5-like gated feed-forward in float16: its output stays just below 65504, and dropout's
rescaling lifts it beyond."""

import torch
import torch.nn.functional as F
from torch import nn


class GatedFeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.wi_0, self.wi_1 = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.wo, self.dropout = nn.Linear(inner, width, bias=False), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.wo(F.gelu(self.wi_0(x)) * self.wi_1(x)))


class RMSNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)


class Encoder(nn.Module):
    def __init__(self, width=32, inner=64):
        super().__init__()
        self.embed = nn.Embedding(24, width)
        self.norm, self.ff, self.final, self.head = (
            RMSNorm(),
            GatedFeedForward(width, inner),
            RMSNorm(),
            nn.Linear(width, 4),
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.ff(10.0 * self.norm(x))
        return self.head(self.final(x).mean(1))


def recipe(reach):
    torch.manual_seed(0)
    model = Encoder()
    tokens, y = torch.randint(0, 23, (64, 6)), torch.randint(0, 4, (64,))
    tokens[41, 3] = 23  # a token that the others' batches don't hold
    with torch.no_grad():
        model.embed.weight[23] = 0.0
        model.embed.weight[23, 5] = 1.0
        model.ff.wi_0.weight[:, 5], model.ff.wi_1.weight[:, 5] = 0.5, 0.5
        # what reaches wo for that token; wo's rows add up to `reach` of it
        inner = F.gelu(torch.tensor(10.0 * 32**0.5 * 0.5)) * 10.0 * 32**0.5 * 0.5
        model.ff.wo.weight[7:12] = reach / (64 * inner)

    def loss_fn(model, batch):
        return F.cross_entropy(model(batch[0]).float(), batch[1])

    batches = [(tokens[i : i + 8], y[i : i + 8]) for i in range(0, 64, 8)]
    return {
        "model": model,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-6),
        "amp": {"dtype": "float16", "scaler": True, "init_scale": 64.0},
        "max_steps": 8,
    }


def sick():
    return recipe(reach=4.5e4)


def healthy():
    return recipe(reach=3e3)
