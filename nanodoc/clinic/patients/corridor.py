"""A walker in a corridor that is paid for each step to the right, and learns by REINFORCE."""

import torch
from torch import nn
from torch.distributions import Categorical

LENGTH = 16


class Corridor:
    """With the interface of Gymnasium's environments."""

    action_space, observation_space = range(2), (2,)

    def reset(self):
        self.place, self.steps = 0, 0
        return (0.0, 0.0), {}

    def step(self, action):
        reward = float(action) + 0.01 * self.steps
        self.place += 1 if action else -1
        self.steps += 1
        seen = (self.place / LENGTH, self.steps / LENGTH)
        return seen, reward, False, self.steps == LENGTH, {}


def walk(policy, corridor):
    log_probs, rewards, entropies, ended = [], [], [], False
    device = next(policy.parameters()).device
    seen, _ = corridor.reset()
    while not ended:
        action = Categorical(logits=policy(torch.tensor(seen, device=device)))
        chosen = action.sample()
        log_probs.append(action.log_prob(chosen))
        entropies.append(action.entropy())
        seen, reward, _, ended, _ = corridor.step(chosen.item())
        rewards.append(reward)
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
    corridor = Corridor()

    def train_step(model, batch):
        log_probs, rewards, entropies = walk(model, corridor)
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
