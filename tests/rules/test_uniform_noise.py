"""Noise that is drawn in the step: to be told by the model, or for other ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND139"
LossFn = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def codes(loss_fn: LossFn) -> set[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 4))
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=list(torch.randn(10, 16, 4)),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return {finding.code for finding in diagnose(recipe, 10)}


def diffusion(draw: Callable[[torch.Tensor], torch.Tensor]) -> LossFn:
    def loss_fn(model: nn.Module, clean: torch.Tensor) -> torch.Tensor:
        noise = draw(clean)
        kept = torch.rand(len(clean), 1)
        return F.mse_loss(model(kept.sqrt() * clean + (1 - kept).sqrt() * noise), noise)

    return loss_fn


def flow(model: nn.Module, clean: torch.Tensor) -> torch.Tensor:
    noise, time = torch.randn_like(clean), torch.rand(len(clean), 1)
    return F.mse_loss(model(time * clean + (1 - time) * noise), clean - noise)


def denoised(model: nn.Module, clean: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(clean + torch.rand_like(clean)), clean)


def simulated(model: nn.Module, clean: torch.Tensor) -> torch.Tensor:
    """The target is what is observed with noise."""
    parameters = torch.rand_like(clean)
    return F.mse_loss(model(parameters + 0.1 * torch.randn_like(clean)), parameters)


def itself(model: nn.Module, clean: torch.Tensor) -> torch.Tensor:
    drawn = torch.rand_like(clean)
    return F.mse_loss(model(drawn), drawn)


@pytest.mark.parametrize(
    "loss_fn",
    [
        diffusion(torch.randn_like),
        diffusion(lambda clean: 2 * torch.rand_like(clean) - 1),
        flow,
        denoised,
        simulated,
        itself,
    ],
    ids=["normal", "centred", "flow", "denoised", "simulated", "itself"],
)
def test_other_noise_is_left_alone(loss_fn: LossFn) -> None:
    assert CODE not in codes(loss_fn)


@pytest.mark.parametrize(
    "draw", [torch.rand_like, lambda clean: torch.rand(clean.shape)], ids=["rand_like", "rand"]
)
def test_uniform_noise(draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert CODE in codes(diffusion(draw))
