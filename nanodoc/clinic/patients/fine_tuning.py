"""A small net that is fine-tuned: an optimizer that was not given the head, a freeze the wrong way
round, and a freeze that sets a plain attribute."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.body = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


def recipe(prepare):
    torch.manual_seed(0)
    model = Net()
    optimizer = prepare(model)
    x = torch.randn(96, 8)
    y = x[:, :3].argmax(1)
    return {
        "model": model,
        "loss_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "data": list(zip(x.split(24), y.split(24), strict=True)),
        "optimizer": optimizer,
        "max_steps": 16,
    }


def whole(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def without_the_head(model):
    return torch.optim.Adam([*model.stem.parameters(), *model.body.parameters()], lr=1e-2)


def the_wrong_way_round(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("body")
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def head_only(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad = name.startswith("head")
    return torch.optim.Adam(model.head.parameters(), lr=1e-2)


def by_attribute(model):
    model.stem.requires_grad = False
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def by_method(model):
    model.stem.requires_grad_(False)
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def sick_optimizer():
    return recipe(without_the_head)


def healthy_optimizer():
    return recipe(whole)


def sick_freeze():
    return recipe(the_wrong_way_round)


def healthy_freeze():
    return recipe(head_only)


def sick_attribute():
    return recipe(by_attribute)


def healthy_attribute():
    return recipe(by_method)
