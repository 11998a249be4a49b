"""A walker over stepping stones, which end in water on one side and in grass on the other, learns
by Q-learning from steps that were kept."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

STONES = 12


def kept_steps(number):
    place = torch.randint(1, STONES - 1, (number,))
    action = torch.randint(0, 2, (number,))
    after = place + 2 * action - 1
    reward = (after == STONES - 1).float()
    done = ((after == 0) | (after == STONES - 1)).float()
    states = F.one_hot(torch.stack([place, after]), STONES).float()
    return states[0], action, reward, states[1], done


def best_of_each(said):
    return said.max(1).values


def recipe(target_of, follows=True, best_of=best_of_each):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(STONES, 32), nn.ReLU(), nn.Linear(32, 2))
    slow = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def train_step(model, batch):
        state, action, reward, after, done = batch
        with torch.no_grad():
            best = best_of(slow.to(state.device)(after))
            target = target_of(reward, best, done)
        said = model(state).gather(1, action[:, None])[:, 0]
        loss = F.smooth_l1_loss(said, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for kept, new in zip(slow.parameters(), model.parameters(), strict=True):
                kept.lerp_(new, 0.05 if follows else 0.0)
        return loss

    return {
        "model": model,
        "train_step": train_step,
        "data": [kept_steps(64) for _ in range(40)],
        "optimizer": optimizer,
        "max_steps": 320,
    }


def sick():
    return recipe(lambda reward, best, done: reward + 0.9 * best * done)


def healthy():
    return recipe(lambda reward, best, done: reward + 0.9 * best * (1 - done))


def without_ends(reward, best, done):
    return reward + 0.9 * best


def sick_endless():
    return recipe(without_ends)


def healthy_endless():
    return healthy()


def going_on(reward, best, done):
    return reward + 0.9 * best * (1 - done)


def sick_stuck():
    return recipe(going_on, follows=False)


def healthy_stuck():
    return recipe(going_on)


def best_of_all(said):
    return said.max()


def sick_crowded():
    return recipe(going_on, best_of=best_of_all)


def healthy_crowded():
    return healthy()
