"""A walker in a corridor that is paid for each step to the right, and learns by REINFORCE."""

import torch
from torch import nn
from torch.distributions import Categorical

LENGTH = 16


def walk(policy):
    log_probs, rewards, entropies, place = [], [], [], 0
    device = next(policy.parameters()).device
    for step in range(LENGTH):
        seen = torch.tensor([place / LENGTH, step / LENGTH], device=device)
        action = Categorical(logits=policy(seen))
        chosen = action.sample()
        log_probs.append(action.log_prob(chosen))
        entropies.append(action.entropy())
        place += 1 if chosen.item() else -1
        rewards.append(float(chosen) + 0.01 * step)
    return log_probs, rewards, torch.stack(entropies)


def to_go(rewards):
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.9 * total
        returns.insert(0, total)
    return torch.tensor(returns)


def so_far(rewards):
    returns, total = [], 0.0
    for reward in rewards:
        total = reward + 0.9 * total
        returns.append(total)
    return torch.tensor(returns)


def recipe(sums, sign=-1.0, certainty=0.0):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def train_step(model, batch):
        log_probs, rewards, entropies = walk(model)
        returns = sums(rewards).to(log_probs[0].device)
        weights = (returns - returns.mean()) / returns.std()
        optimizer.zero_grad()
        loss = (sign * torch.stack(log_probs) * weights).sum()
        if certainty:
            loss = loss + certainty * entropies.mean()
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": policy,
        "train_step": train_step,
        "data": range(1_000),
        "optimizer": optimizer,
        "max_steps": 20,
    }


def sick_forwards():
    return recipe(so_far)


def sick_descending():
    return recipe(to_go, sign=1.0)


def sick_certain():
    return recipe(to_go, certainty=0.05)


def healthy_forwards():
    return recipe(to_go)


healthy_descending = healthy_forwards


def healthy_certain():
    return recipe(to_go, certainty=-0.05)
