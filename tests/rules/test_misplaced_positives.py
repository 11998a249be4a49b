"""Contrastive losses whose targets pair the samples of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND141"
SAMPLES = 32
Arranged = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def halves(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.cat([first, second])


def side_by_side(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return torch.stack([first, second], 1).flatten(0, 1)


def of_halves() -> torch.Tensor:
    return torch.arange(2 * SAMPLES).roll(SAMPLES)


def of_neighbours() -> torch.Tensor:
    return torch.arange(2 * SAMPLES) ^ 1


def codes(arranged: Arranged, targets: Callable[[], torch.Tensor], *, noise: float) -> set[str]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss_fn(model: nn.Module, seen: torch.Tensor) -> torch.Tensor:
        views = [seen + noise * torch.randn_like(seen) for _ in range(2)]
        places = F.normalize(model(arranged(*views)), dim=1)
        alike = places @ places.T / 0.5
        alike = alike.masked_fill(torch.eye(len(alike)).bool(), -1e9)
        return F.cross_entropy(alike, targets())

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=list(torch.randn(12, SAMPLES, 8)),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return {finding.code for finding in diagnose(recipe, 24)}


@pytest.mark.parametrize(
    ("arranged", "targets"), [(halves, of_halves), (side_by_side, of_neighbours)]
)
def test_views_that_are_paired(arranged: Arranged, targets: Callable[[], torch.Tensor]) -> None:
    assert CODE not in codes(arranged, targets, noise=0.2)


@pytest.mark.parametrize(
    ("arranged", "targets"), [(halves, of_neighbours), (side_by_side, of_halves)]
)
def test_strangers_that_are_paired(arranged: Arranged, targets: Callable[[], torch.Tensor]) -> None:
    assert CODE in codes(arranged, targets, noise=0.2)


def test_where_no_order_shows() -> None:
    """Views that have nothing in common say nothing of the order."""
    assert CODE not in codes(halves, of_neighbours, noise=50.0)


def test_two_encoders_that_keep_the_halves_apart() -> None:
    """Every sample of the own half is nearer than the pair, which is the nearest of the other."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 16), nn.Linear(8, 16)])

    def loss_fn(model: nn.ModuleList, seen: torch.Tensor) -> torch.Tensor:
        views = [seen + 0.2 * torch.randn_like(seen) for _ in range(2)]
        places = torch.cat([model[0](views[0]), model[1](views[1]) + 3])
        places = F.normalize(places, dim=1)
        alike = (places @ places.T / 0.5).masked_fill(torch.eye(len(places)).bool(), -1e9)
        return F.cross_entropy(alike, of_halves())

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=list(torch.randn(12, SAMPLES, 8)),
        optimizer=torch.optim.Adam(model.parameters(), 1e-4),
    )
    assert CODE not in {finding.code for finding in diagnose(recipe, 24)}


def by_labels(arranged: Arranged, labels: torch.Tensor, *, early: bool) -> set[str]:
    """A supervised contrastive loss, whose labels are compared before or after the samples."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def loss_fn(model: nn.Module, seen: torch.Tensor) -> torch.Tensor:
        views = [seen + 0.2 * torch.randn_like(seen) for _ in range(2)]
        if early:
            paired = labels[:, None] == labels[None]
        places = F.normalize(model(arranged(*views)), dim=1)
        alike = places @ places.T / 0.5
        if not early:
            paired = labels[:, None] == labels[None]
        itself = torch.eye(len(alike)).bool()
        share = alike.masked_fill(itself, -1e9).log_softmax(1)
        loss: torch.Tensor = -share[paired & ~itself].mean()
        return loss

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=list(torch.randn(12, SAMPLES, 8)),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return {finding.code for finding in diagnose(recipe, 24)}


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("arranged", [halves, side_by_side])
def test_labels_that_pair_by_being_equal(arranged: Arranged, early: bool) -> None:
    numbers = torch.arange(SAMPLES)
    right, wrong = numbers.repeat(2), numbers.repeat_interleave(2)
    if arranged is side_by_side:
        right, wrong = wrong, right
    assert CODE not in by_labels(arranged, right, early=early)
    assert CODE in by_labels(arranged, wrong, early=early)
