"""A policy that is updated by PPO's clipped ratio."""

import torch
from torch import nn
from torch.distributions import Categorical


def recipe(upside_down):
    torch.manual_seed(0)
    seen = torch.randn(512, 4)
    policy = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3))
    with torch.no_grad():
        choice = Categorical(logits=policy(seen))
        taken = choice.sample()
        old = choice.log_prob(taken)
    gain = (taken == seen[:, :3].argmax(1)).float()
    gain = (gain - gain.mean()) / gain.std()

    def loss_fn(model, batch):
        states, actions, before, advantage = batch
        now = Categorical(logits=model(states)).log_prob(actions)
        if upside_down:
            moved = before - now
        else:
            moved = now - before
        ratio = moved.exp()
        return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()

    parts = (part.split(64) for part in (seen, taken, old, gain))
    return {
        "model": policy,
        "loss_fn": loss_fn,
        "data": list(zip(*parts, strict=True)),
        "optimizer": torch.optim.Adam(policy.parameters(), lr=3e-3),
        "max_steps": 24,
    }


def sick():
    return recipe(True)


def healthy():
    return recipe(False)
