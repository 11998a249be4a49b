"""An entropy bonus written as p·log p, and a policy that has become certain."""

import torch
import torch.nn.functional as F
from torch import nn


def recipe(safe):
    torch.manual_seed(0)
    policy = nn.Linear(4, 3)
    states, actions = torch.randn(64, 4), torch.randint(0, 3, (64,))
    mask = torch.ones(64, 3)
    mask[45, 2] = 0.0  # an action that is forbidden in this state

    def loss_fn(model, batch):
        state, action, allowed = batch
        p = F.softmax(model(state), -1) * allowed
        p = p / p.sum(-1, keepdim=True)
        entropy = torch.special.entr(p.clamp_min(1e-9)) if safe else -p * torch.log(p)
        chosen = (p.gather(1, action[:, None]) + 1e-6).log()
        return -chosen.mean() - 0.01 * entropy.sum(-1).mean()

    batches = [
        (states[i : i + 16], actions[i : i + 16], mask[i : i + 16]) for i in range(0, 64, 16)
    ]
    return {
        "model": policy,
        "loss_fn": loss_fn,
        "data": batches,
        "optimizer": torch.optim.Adam(policy.parameters()),
        "max_steps": 4,
    }


def sick():
    return recipe(safe=False)


def healthy():
    return recipe(safe=True)
