"""PPO with mini-epochs on a cart that must stay near the middle of a track."""

import torch
from torch import nn
from torch.distributions import Categorical


class Carts:
    """Many carts at once. A push goes left or right; an episode ends when a cart leaves the track."""

    def __init__(self, count, limit=60):
        self.count, self.limit = count, limit
        self.state = torch.zeros(count, 2)
        self.time = torch.zeros(count)
        self._restart(torch.ones(count, dtype=torch.bool))

    def _restart(self, which):
        self.state[which] = torch.randn(int(which.sum()), 2) * 0.3
        self.time[which] = 0

    def step(self, action):
        force = action.float() * 2 - 1
        wind = 0.3 * torch.randn(self.count)
        self.state[:, 1] += 0.1 * (2 * force + wind + 1.5 * self.state[:, 0])
        self.state[:, 0] += 0.1 * self.state[:, 1]
        self.time += 1
        gone = self.state[:, 0].abs() > 1
        done = gone | (self.time >= self.limit)
        reward = 1.0 - self.state[:, 0].abs() - 5.0 * gone.float()
        self._restart(done)
        return self.state.clone(), reward, done.float()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
        self.pi = nn.Linear(64, 2)
        self.v = nn.Linear(64, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def collect(envs, agent, obs, horizon):
    memory = {k: [] for k in ("obs", "actions", "log_probs", "rewards", "dones", "values")}
    with torch.no_grad():
        for _ in range(horizon):
            dist, value = agent(obs)
            action = dist.sample()
            memory["obs"].append(obs)
            memory["actions"].append(action)
            memory["log_probs"].append(dist.log_prob(action))
            memory["values"].append(value)
            obs, reward, done = envs.step(action)
            memory["rewards"].append(reward)
            memory["dones"].append(done)
        last_value = agent(obs)[1]
    return {k: torch.stack(v) for k, v in memory.items()}, obs, last_value


def gae(memory, last_value, gamma=0.98, lam=0.95):
    rewards, dones, values = memory["rewards"], memory["dones"], memory["values"]
    advantages = torch.zeros_like(rewards)
    running, next_value = torch.zeros_like(last_value), last_value
    for t in reversed(range(len(rewards))):
        alive = 1.0 - dones[t]
        delta = rewards[t] + gamma * next_value * alive - values[t]
        running = delta + gamma * lam * alive * running
        advantages[t] = running
        next_value = values[t]
    return advantages, advantages + values


def update(agent, optimizer, memory, advantages, returns, epochs=4, minibatch=128, clip=0.2):
    flat = {k: v.flatten(0, 1) for k, v in memory.items()}
    advantages, returns = advantages.flatten(), returns.flatten()
    for _ in range(epochs):
        for idx in torch.randperm(len(returns)).split(minibatch):
            dist, value = agent(flat["obs"][idx])
            ratio = (dist.log_prob(flat["actions"][idx]) - flat["log_probs"][idx]).exp()
            adv = advantages[idx]
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            policy_loss = -torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv).mean()
            value_loss = (returns[idx] - value).pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - 0.01 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def evaluate(agent, count=64, horizon=60):
    torch.manual_seed(123)
    envs, total = Carts(count), torch.zeros(count)
    obs = envs.state.clone()
    with torch.no_grad():
        for _ in range(horizon):
            obs, reward, _ = envs.step(agent(obs)[0].probs.argmax(-1))
            total += reward
    return total.mean().item()


if __name__ == "__main__":
    torch.manual_seed(0)
    envs, agent = Carts(16), ActorCritic()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2e-3)
    obs = envs.state.clone()
    for iteration in range(15):
        memory, obs, last_value = collect(envs, agent, obs, horizon=64)
        advantages, returns = gae(memory, last_value)
        update(agent, optimizer, memory, advantages, returns)
        if iteration % 5 == 0:
            print(f"iteration {iteration}: reward {memory['rewards'].mean():.3f}")
    print(f"held-out return {evaluate(agent):.2f}")
