"""Cosines under a cross entropy, and the factors that they are given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanodoc import Recipe
from tests.helpers import diagnose


def codes(loss: Callable[[Tensor, Tensor], Tensor]) -> set[str]:
    """Of a step that compares the embeddings of two views of each sample."""
    torch.manual_seed(0)
    x = torch.randn(10, 16, 6)
    model = nn.Linear(6, 8)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=lambda model, b: loss(model(b), model(b + 0.1 * b.roll(1, 1))),
        data=list(x),
    )
    return {finding.code for finding in diagnose(recipe, 10)}


def own(scores: Tensor) -> Tensor:
    return F.cross_entropy(scores, torch.arange(len(scores)))


def multiplied(a: Tensor, b: Tensor) -> Tensor:
    return own(F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T * 0.05)


def divided(a: Tensor, b: Tensor) -> Tensor:
    one, other = a / a.norm(dim=-1, keepdim=True), b / b.norm(dim=-1, keepdim=True)
    return own(torch.mm(one, other.t()) / 20)


def by_hand(a: Tensor, b: Tensor) -> Tensor:
    cosines = F.cosine_similarity(a[:, None], b[None], dim=-1) * 0.1
    return (torch.logsumexp(cosines, dim=1) - cosines.diagonal()).mean()


def masked(a: Tensor, b: Tensor) -> Tensor:
    both = F.normalize(torch.cat([a, b]), dim=-1)
    scores = (both @ both.T) * 0.1
    scores = scores.masked_fill(torch.eye(len(both), dtype=torch.bool), float("-inf"))
    return F.cross_entropy(scores, torch.arange(len(both)).roll(len(a)))


@pytest.mark.parametrize("loss", [multiplied, divided, by_hand, masked], ids=lambda f: f.__name__)
def test_a_factor_that_makes_them_equal(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert "ND647" in codes(loss)


def tempered(a: Tensor, b: Tensor) -> Tensor:
    return own(F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.05)


def plain(a: Tensor, b: Tensor) -> Tensor:
    return own(F.cosine_similarity(a[:, None], b[None], dim=-1))


def products(a: Tensor, b: Tensor) -> Tensor:
    return own(a @ b.T * 0.05)


def learnt(a: Tensor, b: Tensor) -> Tensor:
    scale = torch.tensor(0.05)  # may be a parameter
    return own(F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T * scale)


@pytest.mark.parametrize("loss", [tempered, plain, products, learnt], ids=lambda f: f.__name__)
def test_scores_that_can_differ(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert "ND647" not in codes(loss)
