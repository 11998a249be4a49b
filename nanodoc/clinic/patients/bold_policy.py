"""A policy is improved over several passes of one rollout, within bounds of its ratio to the policy
that acted."""

import torch
from torch import nn
from torch.distributions import Categorical


def recipe(chosen):
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    seen = torch.randn(512, 5)
    with torch.no_grad():
        acting = Categorical(logits=policy(seen))
        acts = acting.sample()
        old = acting.log_prob(acts)
    gain = seen.gather(1, acts[:, None])[:, 0]
    gain = (gain - gain.mean()) / gain.std()

    def train_step(model, batch):
        state, act, before, gained = batch
        ratio = (Categorical(logits=model(state)).log_prob(act) - before).exp()
        bounded = ratio.clamp(0.8, 1.2)
        loss = -chosen(gained * ratio, gained * bounded).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    rows = torch.arange(512).split(64)
    return {
        "model": policy,
        "train_step": train_step,
        "data": [(seen[i], acts[i], old[i], gain[i]) for i in rows],
        "optimizer": optimizer,
        "max_steps": 40,
    }


def sick():
    return recipe(torch.maximum)


def healthy():
    return recipe(torch.minimum)
