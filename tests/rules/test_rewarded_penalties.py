"""Penalties and bonuses in the loss with the right sign and with the wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND649"


def codes(model: nn.Module, loss_fn: Callable[..., torch.Tensor], data: list[object]) -> set[str]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recipe = Recipe(model=model, optimizer=optimizer, loss_fn=loss_fn, data=data)
    return {finding.code for finding in diagnose(recipe, 12)}


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mu, logvar = self.encoder(x).chunk(2, 1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.decoder(z), mu, logvar


def elements(mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    return 1 + logvar - mu.pow(2) - logvar.exp()


KL = {
    "summed": lambda e, r: r - 0.5 * e.sum(),
    "of each sample": lambda e, r: r + torch.mean(-0.5 * torch.sum(e, dim=1), dim=0),
    "weighted": lambda e, r: r + 0.1 * (-0.5 * e.sum()),
    "capacity": lambda e, r: r + (-0.5 * e.sum() - 1e4).abs(),
    "subtracted": lambda e, r: r - (-0.5 * e.sum()),
    "no minus": lambda e, r: r + 0.5 * torch.sum(e),
    "mean subtracted": lambda e, r: r - torch.mean(-0.5 * torch.sum(e, dim=1)),
}


@pytest.mark.parametrize("form", KL)
def test_a_divergence_is_a_penalty(form: str) -> None:
    torch.manual_seed(0)

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        output, mu, logvar = model(batch)
        return KL[form](elements(mu, logvar), F.mse_loss(output, batch, reduction="sum"))

    data: list[object] = list(torch.randn(12, 16, 12))
    sick = form in ("subtracted", "no minus", "mean subtracted")
    assert (CODE in codes(Autoencoder(), loss_fn, data)) == sick


WEIGHTS = {
    "added": lambda m, loss: loss + 1e-3 * sum(p.pow(2).sum() for p in m.parameters()),
    "norms": lambda m, loss: loss + 1e-3 * sum(p.norm() for p in m.parameters()),
    "normalised": lambda m, loss: loss + (m[0].weight / m[0].weight.norm()).sum(),
    "hinge": lambda m, loss: loss + F.relu(1e3 - m[0].weight.norm()),
    "subtracted": lambda m, loss: loss - 1e-3 * sum(p.pow(2).sum() for p in m.parameters()),
    "squares": lambda m, loss: loss - 1e-3 * (m[0].weight ** 2).sum(),
    "norms subtracted": lambda m, loss: loss - 1e-3 * sum(p.norm(2) ** 2 for p in m.parameters()),
}


@pytest.mark.parametrize("form", WEIGHTS)
def test_the_size_of_weights_is_a_penalty(form: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 16, 6)

    def loss_fn(model: nn.Sequential, batch: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(batch), batch[:, :3].argmax(1))
        return WEIGHTS[form](model, loss)

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    assert (CODE in codes(model, loss_fn, list(x))) == ("subtracted" in form or form == "squares")


def test_the_line_that_turns_a_penalty() -> None:
    """`1 - x` turns the sign as `-x` does, though x is its only argument."""
    torch.manual_seed(0)

    def loss_fn(model: nn.Sequential, batch: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(batch), batch[:, :3].argmax(1))
        size = model[0].weight.pow(2).sum()
        reward = 1.0 - size
        return loss + reward

    model = nn.Sequential(nn.Linear(6, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = list(torch.randn(12, 16, 6))
    recipe = Recipe(model=model, optimizer=optimizer, loss_fn=loss_fn, data=data)
    (finding,) = (found for found in diagnose(recipe, 12) if found.code == CODE)
    assert finding.culprit.location is not None
    assert finding.culprit.location.code.strip() == "reward = 1.0 - size"


def proximal(ratio: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    clipped = torch.clamp(ratio, 0.8, 1.2)
    return torch.max(-advantages * ratio, -advantages * clipped).mean()


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_entropy_of_a_policy_is_a_bonus(kind: str, sign: float) -> None:
    torch.manual_seed(0)
    states, advantages = torch.randn(12, 16, 6), torch.randn(12, 16)
    actions = torch.randint(0, 3, (12, 16)) if kind == "discrete" else torch.randn(12, 16, 3)
    before = torch.full((12, 16), -1.0)

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        state, action, old, advantage = batch
        if kind == "discrete":
            policy = Categorical(logits=model(state))
            log_prob, entropy = policy.log_prob(action), policy.entropy()
        else:
            gaussian = Normal(model(state), 0.5 + F.softplus(model(state)))
            log_prob, entropy = gaussian.log_prob(action).sum(1), gaussian.entropy().sum(1)
        return proximal((log_prob - old).exp(), advantage) + sign * 0.01 * entropy.mean()

    data: list[object] = list(zip(states, actions, before, advantages, strict=True))
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    assert (CODE in codes(model, loss_fn, data)) == (sign > 0)


def test_a_gate_may_become_certain() -> None:
    """Its log-probabilities are nobody's actions: a mixture is fitted to data."""
    torch.manual_seed(0)

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        gate = Categorical(logits=model(batch))
        return -gate.log_prob(batch[:, :3].argmax(1)).mean() + 0.1 * gate.entropy().mean()

    assert CODE not in codes(nn.Linear(6, 3), loss_fn, list(torch.randn(12, 16, 6)))
