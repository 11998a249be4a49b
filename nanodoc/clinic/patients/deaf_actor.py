"""An actor that is to please a critic and to stay undecided, with an action drawn from what it
says."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal


def recipe(drawn):
    torch.manual_seed(0)
    actor = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
    acting = torch.optim.Adam(actor.parameters(), lr=1e-3)
    judging = torch.optim.Adam(critic.parameters(), lr=1e-3)

    def train_step(model, batch):
        state, done, paid = batch
        worth = critic(torch.cat([state, done], 1))[:, 0]
        judging.zero_grad()
        loss = F.mse_loss(worth, paid)
        loss.backward()
        judging.step()
        mean, spread = actor(state).chunk(2, 1)
        chances = Normal(mean, F.softplus(spread) + 0.01)
        action = drawn(chances)
        worth = critic(torch.cat([state, action], 1))
        acting.zero_grad()
        (0.1 * chances.log_prob(action) - worth).mean().backward()
        acting.step()
        return loss

    state, done = torch.randn(40, 32, 3), torch.randn(40, 32, 1)
    paid = -((done - state[..., :1]) ** 2).squeeze(-1)
    return {
        "model": nn.ModuleDict({"actor": actor, "critic": critic}),
        "train_step": train_step,
        "data": list(zip(state, done, paid, strict=True)),
        "optimizer": [acting, judging],
        "max_steps": 40,
    }


def drawn_at_once(chances):
    return chances.sample()


def drawn_with_gradients(chances):
    return chances.rsample()


def sick():
    return recipe(drawn_at_once)


def healthy():
    return recipe(drawn_with_gradients)
