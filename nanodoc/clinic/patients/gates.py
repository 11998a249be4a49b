"""A layer with gates of its own: a running mean kept with its graph, a gate clamped in place, and a
backward that forgets to sum."""

import torch
import torch.nn.functional as F
from torch import nn


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale, grad * x


class ScaledRight(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        return grad * scale, (grad * x).sum(0, keepdim=True)


class Net(nn.Module):
    def __init__(self, scaled=ScaledRight, clamped=False, logged=None):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 1)
        self.gate = nn.Parameter(torch.ones(1, 12))
        self.scaled, self.clamped, self.logged = scaled, clamped, logged
        self.activity = torch.zeros(())

    def forward(self, x):
        h = torch.tanh(self.body(x))
        if self.logged == "graph":
            self.activity = self.activity + h.mean()
        elif self.logged == "number":
            self.activity = self.activity + h.mean().detach()
        if self.clamped:
            self.gate.clamp_(0.1, 10.0)
        return self.head(self.scaled.apply(h, self.gate))


def recipe(**options):
    torch.manual_seed(0)
    model = Net(**options)
    x = torch.randn(96, 6)
    y = x[:, :1] * x[:, 1:2]
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
        "data": list(zip(x.split(24), y.split(24), strict=True)),
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 12,
    }


def sick_log():
    return recipe(logged="graph")


def healthy_log():
    return recipe(logged="number")


def sick_clamp():
    return recipe(clamped=True)


def healthy_clamp():
    return recipe()


def sick_backward():
    return recipe(scaled=Scaled)


def healthy_backward():
    return recipe()
