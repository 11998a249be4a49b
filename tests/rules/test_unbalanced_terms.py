"""The terms of a variational autoencoder's loss, written in the ways that people write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

from nanodoc import Recipe, examine

SIDE, BATCH = 32, 16  # 1 024 pixels: more than the 500 times that are told
Loss = Callable[..., torch.Tensor]


class Autoencoder(nn.Module):
    def __init__(self, *, softplus: bool) -> None:
        super().__init__()
        self.softplus = softplus
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU())
        self.heads = nn.ModuleList([nn.Linear(32, 4), nn.Linear(32, 4)])
        self.decoder = nn.Linear(4, SIDE * SIDE)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.encoder(x)
        mu, rest = self.heads[0](hidden), self.heads[1](hidden)
        std = F.softplus(rest) if self.softplus else (0.5 * rest).exp()
        latent = mu + torch.randn_like(std) * std
        return self.decoder(latent), mu, rest, std


def divergences(mu: torch.Tensor, logvar: torch.Tensor) -> torch.Tensor:
    return 1 + logvar - mu**2 - logvar.exp()


def told(loss: Loss, *, softplus: bool = False, steps: int = 60) -> list[str]:
    torch.manual_seed(0)
    model = Autoencoder(softplus=softplus)
    waves = torch.sin(torch.linspace(0, 9, SIDE) + 6 * torch.rand(320, 1, 1))
    pictures = waves.expand(320, SIDE, SIDE).flatten(1)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: loss(*model(batch), batch),
        optimizer=torch.optim.Adam(model.parameters(), lr=3e-3),
        data=torch.utils.data.DataLoader(pictures, BATCH, shuffle=True),
    )
    return [found.code for found in examine(recipe, steps=steps).findings if found.code == "ND637"]


SICK: list[Loss] = [
    lambda out, mu, rest, std, x: F.mse_loss(out, x) - 0.5 * divergences(mu, rest).sum(),
    lambda out, mu, rest, std, x: -0.5 * divergences(mu, rest).sum() + ((out - x) ** 2).mean(),
    lambda out, mu, rest, std, x: (
        F.mse_loss(out, x) + torch.mean(-0.5 * torch.sum(divergences(mu, rest), dim=1))
    ),
]


@pytest.mark.parametrize("loss", SICK)
def test_a_mean_beside_a_sum(loss: Loss) -> None:
    assert told(loss) == ["ND637"]
    assert told(loss, steps=10) == []


def test_a_divergence_of_distributions() -> None:
    def loss(out: Any, mu: Any, rest: Any, std: Any, x: Any) -> torch.Tensor:
        divergence: torch.Tensor = kl_divergence(Normal(mu, std), Normal(0.0, 1.0))
        return F.mse_loss(out, x) + divergence.sum()

    assert told(loss, softplus=True) == ["ND637"]


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, mu, rest, std, x: (
            F.mse_loss(out, x, reduction="sum") - 0.5 * divergences(mu, rest).sum()
        ),
        lambda out, mu, rest, std, x: F.mse_loss(out, x) - 0.5 * divergences(mu, rest).mean(),
        lambda out, mu, rest, std, x: (
            F.mse_loss(out, x) - 1e-4 * 0.5 * divergences(mu, rest).sum(1).mean()
        ),
        lambda out, mu, rest, std, x: (
            F.mse_loss(out, x) - 0.5 * divergences(mu, rest).sum() / out.numel()
        ),
        lambda out, mu, rest, std, x: (
            ((out - x) ** 2).sum(1).mean() - 0.5 * divergences(mu, rest).sum(1).mean()
        ),
        lambda out, mu, rest, std, x: F.mse_loss(out, x) + 0.01 * mu.pow(2).sum(),
    ],
)
def test_terms_that_belong_together(loss: Loss) -> None:
    assert told(loss) == []
