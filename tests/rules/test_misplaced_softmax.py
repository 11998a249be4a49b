"""A softmax beside labels of 0 and 1: over the classes, and over something else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

CODE = "ND651"
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def codes(loss: Loss, labels: torch.Tensor) -> set[str]:
    """`loss(scores, labels)` of scores of shape (8, 3, 6, 6)."""
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 1)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, x: loss(model(x), labels),
        data=list(torch.randn(10, 8, 2, 6, 6)),
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
    )
    return {finding.code for finding in diagnose(recipe, 10)}


torch.manual_seed(1)
CLASSES = torch.randint(0, 3, (8, 6, 6))
ONE_HOT = F.one_hot(CLASSES, 3).permute(0, 3, 1, 2).float()


def dice(dim: int) -> Loss:
    return lambda scores, labels: -(scores.softmax(dim) * labels).sum() / labels.sum()


def by_logs(dim: int) -> Loss:
    return lambda scores, labels: -(scores.log_softmax(dim) * labels).sum(1).mean()


def squared(dim: int) -> Loss:
    return lambda scores, labels: F.mse_loss(scores.softmax(dim), labels)


def clamped(dim: int) -> Loss:
    return lambda scores, labels: -(scores.softmax(dim).clamp(min=1e-6).log() * labels).mean()


@pytest.mark.parametrize("loss", [dice, by_logs, squared, clamped])
def test_over_the_classes(loss: Callable[[int], Loss]) -> None:
    assert CODE not in codes(loss(1), ONE_HOT)


@pytest.mark.parametrize("loss", [dice, by_logs, squared, clamped])
def test_over_columns(loss: Callable[[int], Loss]) -> None:
    assert CODE in codes(loss(-1), ONE_HOT)


def test_where_the_labels_say_nothing_of_a_dimension() -> None:
    """Several classes at a pixel, or none; one pixel of each map, which a softmax over pixels
    finds."""
    several = (torch.rand(8, 3, 6, 6) < 0.3).float()
    assert CODE not in codes(dice(-1), several)
    places = F.one_hot(torch.randint(0, 36, (8, 3)), 36).float()
    assert CODE not in codes(
        lambda scores, labels: -(scores.flatten(2).softmax(-1) * labels).sum(), places
    )


def test_two_sets_that_are_matched_in_both_directions() -> None:
    """Each of 3 is one of 36; a softmax goes over either side."""
    matched = F.one_hot(torch.randint(0, 36, (8, 3)), 36).float()

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        scores = scores.flatten(2)
        return (
            -((scores.log_softmax(1) + scores.log_softmax(2)) * labels).sum()
            - (scores.log_softmax(1) * labels).sum()
        )

    assert CODE not in codes(loss, matched)


def test_a_matrix_of_choices() -> None:
    """In a matrix, what is 0 and 1 may select: attention over the members of each group."""
    groups = F.one_hot(torch.arange(8) % 3, 3).float()
    assert CODE not in codes(
        lambda scores, labels: -(scores.mean((2, 3)).softmax(0) * labels).sum().log(), groups
    )
