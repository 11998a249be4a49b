"""Soft actor-critic: a point is steered to the origin in two dimensions."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
GAMMA, TAU, BATCH, HORIZON = 0.95, 0.02, 128, 30


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_out))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(4, 4)

    def forward(self, obs):
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        std = log_std.clamp(-5, 1).exp()
        raw = mean + std * torch.randn_like(mean)
        action = torch.tanh(raw)
        log_prob = -0.5 * ((raw - mean) / std).pow(2) - std.log() - 0.919
        log_prob = log_prob - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(6, 1), mlp(6, 1)

    def forward(self, obs, action):
        x = torch.cat([obs, action], dim=-1)
        return self.q1(x), self.q2(x)


class Buffer:
    def __init__(self, size=20000):
        self.data, self.at, self.full, self.size = torch.zeros(size, 4 + 2 + 1 + 4 + 1), 0, 0, size

    def add(self, *parts):
        rows = torch.cat(parts, dim=-1)
        self.data[self.at : self.at + len(rows)] = rows
        self.at = (self.at + len(rows)) % self.size
        self.full = min(self.full + len(rows), self.size)

    def batch(self):
        rows = self.data[torch.randint(self.full, (BATCH,))]
        return rows.split([4, 2, 1, 4, 1], dim=-1)


def physics(obs, action):
    pos, vel = obs.chunk(2, -1)
    vel = 0.9 * vel + 0.2 * action
    pos = pos + 0.2 * vel
    reward = -pos.pow(2).sum(-1, keepdim=True) - 0.01 * action.pow(2).sum(-1, keepdim=True)
    done = (pos.abs().amax(-1, keepdim=True) > 3).float()
    return torch.cat([pos, vel], -1), reward - 20 * done, done


def reset(n):
    return torch.cat([torch.rand(n, 2) * 3 - 1.5, torch.zeros(n, 2)], -1)


actor, critic = Actor(), Critic()
critic_target = copy.deepcopy(critic).requires_grad_(False)
log_alpha = torch.zeros(1, requires_grad=True)
actor_opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-3)
alpha_opt = torch.optim.Adam([log_alpha], lr=3e-3)
buffer, obs = Buffer(), reset(10)

for step in range(500):
    with torch.no_grad():
        action = torch.rand(10, 2) * 2 - 1 if step < 30 else actor(obs)[0]
        next_obs, reward, done = physics(obs, action)
    buffer.add(obs, action, reward, next_obs, done)
    obs = torch.where(done.bool(), reset(10), next_obs)
    if step % HORIZON == HORIZON - 1:
        obs = reset(10)
    if step < 30:
        continue

    o, a, r, o2, d = buffer.batch()
    with torch.no_grad():
        a2, logp2 = actor(o2)
        q_next = torch.min(*critic_target(o2, a2)) - log_alpha.exp() * logp2
        target = r + GAMMA * (1 - d) * q_next
    q1, q2 = critic(o, a)
    critic_loss = F.mse_loss(q1, target) + F.mse_loss(q2, target)
    critic_opt.zero_grad()
    critic_loss.backward()
    critic_opt.step()

    new_a, logp = actor(o)
    actor_loss = (log_alpha.exp().detach() * logp - torch.min(*critic(o, new_a))).mean()
    actor_opt.zero_grad()
    actor_loss.backward()
    actor_opt.step()

    alpha_loss = -(log_alpha * (logp.detach() - 2.0)).mean()
    alpha_opt.zero_grad()
    alpha_loss.backward()
    alpha_opt.step()

    with torch.no_grad():
        for p, target_p in zip(critic.parameters(), critic_target.parameters()):
            target_p.mul_(1 - TAU).add_(TAU * p)
    if step % 100 == 0:
        print(step, f"critic {critic_loss.item():.3f} actor {actor_loss.item():.3f}")


def evaluate():
    torch.manual_seed(99)
    o, total = reset(200), torch.zeros(200, 1)
    with torch.no_grad():
        for _ in range(HORIZON):
            o, r, _ = physics(o, torch.tanh(actor.net(o).chunk(2, -1)[0]))
            total += r
    return total.clamp(min=-1000).mean().item()


print(f"held-out return {evaluate():.3f}")
