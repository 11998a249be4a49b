"""Temporal differences against a target network, which is given the memory of the one that learns
where it should be given its values."""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class Learner:
    def __init__(self, *, shared):
        torch.manual_seed(0)
        self.online = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
        self.target = copy.deepcopy(self.online)
        self.shared, self.steps = shared, 0

    def train_step(self, model, batch, optimizer):
        states, rewards = batch
        if self.steps % 10 == 0:
            for slow, fast in zip(self.target.parameters(), model.parameters(), strict=True):
                if self.shared:
                    slow.data = fast.data
                else:
                    slow.data.copy_(fast.data)
        self.steps += 1
        with torch.no_grad():
            following = self.target(states[1:])
        wanted = rewards[:-1, None] + 0.9 * following
        loss = F.smooth_l1_loss(model(states[:-1]), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss


def recipe(*, shared):
    learner = Learner(shared=shared)
    states = torch.randn(20, 33, 6)
    return {
        "model": learner.online,
        "train_step": learner.train_step,
        "data": list(zip(states, states[:, :, :2].sum(2), strict=True)),
        "optimizer": torch.optim.Adam(learner.online.parameters(), lr=1e-3),
        "max_steps": 40,
    }


def sick():
    return recipe(shared=True)


def healthy():
    return recipe(shared=False)
