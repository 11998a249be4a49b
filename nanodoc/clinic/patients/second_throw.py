"""Whoever throws learns from what the throw has won: but of a second throw's probability."""

import torch
from torch import nn
from torch.distributions import Categorical


def recipe(again):
    torch.manual_seed(0)
    thrower = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(thrower.parameters(), lr=1e-3)

    def train_step(model, batch):
        log_probs, rewards = [], []
        for place in batch:
            chances = Categorical(logits=model(place))
            thrown = chances.sample()
            rewards.append(float(thrown == int(place.argmax())) + 0.1 * len(rewards))
            judged = chances.sample() if again else thrown
            log_probs.append(chances.log_prob(judged))
        wins, won = [], 0.0
        for reward in reversed(rewards):
            won = reward + 0.9 * won
            wins.insert(0, won)
        wins = torch.tensor(wins, device=batch.device)
        loss = -(torch.stack(log_probs) * (wins - wins.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return {
        "model": thrower,
        "train_step": train_step,
        "data": list(torch.randn(30, 16, 3)),
        "optimizer": optimizer,
        "max_steps": 30,
    }


def sick():
    return recipe(again=True)


def healthy():
    return recipe(again=False)
