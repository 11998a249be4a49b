"""A player of a card game learns from hands that were kept, a few of them at a time, in a random
order."""

import torch
from torch import nn
from torch.distributions import Categorical

HANDS, FEW = 512, 64


def kept_hands(policy):
    seen = torch.randn(HANDS, 6)
    with torch.no_grad():
        chances = Categorical(logits=policy(seen))
        played = chances.sample()
        before = chances.log_prob(played)
    gains = (seen[:, 0] > 0).eq(played == 1).float()
    return seen, played, before, gains - gains.mean()


def recipe(gains_of):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    seen, played, before, gains = kept_hands(policy)
    order = torch.randperm(HANDS)

    def train_step(model, start):
        few = order[start : start + FEW]
        device = next(model.parameters()).device
        chances = Categorical(logits=model(seen[few].to(device)))
        ratio = (chances.log_prob(played[few].to(device)) - before[few].to(device)).exp()
        worth = gains_of(gains, few, start).to(device)
        loss = -torch.min(ratio * worth, ratio.clamp(0.8, 1.2) * worth).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": policy,
        "train_step": train_step,
        "data": [*range(0, HANDS, FEW)] * 5,
        "optimizer": optimizer,
        "max_steps": 40,
    }


def of_these(gains, few, start):
    return gains[few]


def of_others(gains, few, start):
    return gains[start : start + FEW]


def sick():
    return recipe(of_others)


def healthy():
    return recipe(of_these)
