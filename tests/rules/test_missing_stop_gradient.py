"""Losses between two outputs of one network, with and without something that holds them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc.recipe.recipe import Recipe
from tests.helpers import diagnose

Loss = Callable[[nn.Module, Any], torch.Tensor]


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.predictor = nn.Linear(8, 8)
        self.out = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.encoder(x)
        return made


def codes(model: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return model(x), model(x + 0.1 * torch.randn_like(x))


def written_out(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    told = F.normalize(model.predictor(one), dim=-1)
    return 2 - 2 * (told * F.normalize(other, dim=-1)).sum(-1).mean()


def differences(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    return (model.predictor(one) - other).pow(2).sum(1).mean()


def nothing_but_agreement(model: Any, x: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(*codes(model, x))


def detached(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    return F.mse_loss(model.predictor(one), other.detach())


def beside_a_reconstruction(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    return F.mse_loss(one, other) + F.mse_loss(model.out(one), x)


def with_a_spread(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    return F.mse_loss(one, other) + F.relu(1 - one.std(0)).mean()


def contrastive(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = (F.normalize(code, dim=-1) for code in codes(model, x))
    return F.cross_entropy(one @ other.T / 0.5, torch.arange(len(x)))


def a_residual(model: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    made = model(x).sum(-1, keepdim=True)
    (slope,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    return (slope.sum(-1, keepdim=True) - made).square().mean()


def a_product(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    return (torch.sigmoid(one) * torch.tanh(other)).sum(-1).mean()


def at_a_distance(model: Any, x: torch.Tensor) -> torch.Tensor:
    one, other = codes(model, x)
    apart = (model.predictor(one) - other).pow(2).sum(1).sqrt()
    return (apart - 1.0).pow(2).mean()


def likelihood_by_hand(model: Any, x: torch.Tensor) -> torch.Tensor:
    scores = model.out(model(x))
    return (scores.logsumexp(1, keepdim=True) - scores[:, :1]).mean()


def found(loss: Loss) -> list[str]:
    torch.manual_seed(0)
    model = Two()
    recipe = Recipe(
        model=model,
        loss_fn=loss,
        data=list(torch.randn(10, 16, 6)),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return [one.code for one in diagnose(recipe, 20)]


@pytest.mark.parametrize(
    "loss", [written_out, differences, nothing_but_agreement], ids=lambda one: one.__name__
)
def test_nothing_holds_them_apart(loss: Loss) -> None:
    assert "ND519" in found(loss)


@pytest.mark.parametrize(
    "loss",
    [
        detached,
        beside_a_reconstruction,
        with_a_spread,
        contrastive,
        a_residual,
        a_product,
        at_a_distance,
        likelihood_by_hand,
    ],
    ids=lambda one: one.__name__,
)
def test_something_does(loss: Loss) -> None:
    assert "ND519" not in found(loss)
