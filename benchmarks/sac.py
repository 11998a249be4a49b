"""Soft actor-critic as a plain script: an actor, two critics with target networks, a temperature,
three optimizers and a replay buffer; a step of 3 to 5 ms. `benchmarks/scripts.py` runs it with the
module `turns` of `benchmarks/turns.py` beside it."""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
    )


def act(actor: nn.Module, state: Tensor) -> tuple[Tensor, Tensor]:
    """Actions and their log-probability, both (batch, 1)."""
    mean, log_std = actor(state).chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
    raw = normal.rsample()
    action = raw.tanh()
    return action, normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)


class Agent:
    def __init__(self) -> None:
        self.actor, self.first, self.second = network(4, 2), network(5, 1), network(5, 1)
        self.targets = nn.ModuleList([network(5, 1), network(5, 1)])
        self.targets.load_state_dict(nn.ModuleList([self.first, self.second]).state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.critics = [*self.first.parameters(), *self.second.parameters()]
        self.of_actor = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.of_critics = torch.optim.Adam(self.critics, lr=3e-4)
        self.of_alpha = torch.optim.Adam([self.log_alpha], lr=3e-4)

    def learn(self, states: Tensor, actions: Tensor, rewards: Tensor, following: Tensor) -> None:
        with torch.no_grad():
            action, log_prob = act(self.actor, following)
            pair = torch.cat([following, action], 1)
            value = torch.min(self.targets[0](pair), self.targets[1](pair))
            target = rewards + 0.99 * (value - self.log_alpha.exp() * log_prob)
        pair = torch.cat([states, actions], 1)
        loss = F.mse_loss(self.first(pair), target) + F.mse_loss(self.second(pair), target)
        self.of_critics.zero_grad()
        loss.backward()
        self.of_critics.step()
        action, log_prob = act(self.actor, states)
        pair = torch.cat([states, action], 1)
        value = torch.min(self.first(pair), self.second(pair))
        self.of_actor.zero_grad()
        (self.log_alpha.exp().detach() * log_prob - value).mean().backward()
        self.of_actor.step()
        self.of_alpha.zero_grad()
        (-(self.log_alpha * (log_prob.detach() - 1.0)).mean()).backward()
        self.of_alpha.step()
        with torch.no_grad():
            for average, learnt in zip(self.targets.parameters(), self.critics, strict=True):
                average.lerp_(learnt, 0.005)


def main(untimed: int, count: int, length: int, mine: int, out: str) -> None:
    from turns import Turns  # type: ignore[import-not-found]  # laid beside it

    turns = Turns(mine)
    torch.manual_seed(0)
    agent = Agent()
    states, actions, rewards = torch.zeros(4096, 4), torch.zeros(4096, 1), torch.zeros(4096, 1)
    following, state = torch.zeros(4096, 4), torch.randn(4)
    rows: list[list[float]] = []
    began: list[float] = []
    for step in range(untimed + count * length):
        turn, at = divmod(step - untimed, length)
        if step == 0 or (turn >= 0 and at == 0):
            turns.wait(max(turn + 1, 0))
            began = []
        began.append(time.perf_counter())
        with torch.no_grad():
            action, _ = act(agent.actor, state[None])
        moved = 0.9 * state + 0.3 * action[0] + 0.05 * torch.randn(4)
        slot = step % len(states)
        states[slot], actions[slot], following[slot] = state, action[0], moved
        rewards[slot] = -moved.square().mean()
        state = moved
        drawn = torch.randint(0, min(step + 1, len(states)), (64,))
        agent.learn(states[drawn], actions[drawn], rewards[drawn], following[drawn])
        if step + 1 == untimed or (turn >= 0 and at == length - 1):
            rows.append([*began, time.perf_counter()])
            turns.over(max(turn + 1, 0))
    with open(out, "w") as file:
        json.dump({"rows": rows, "peak": 1}, file)


if __name__ == "__main__":
    untimed, count, length, mine = (int(text) for text in sys.argv[3:7])
    main(untimed, count, length, mine, sys.argv[7])
