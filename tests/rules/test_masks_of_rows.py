"""ND116: a mask that keeps what is the same everywhere, and hides what differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanodoc import Recipe
from tests.helpers import diagnose

LONGEST = 10


class Words(nn.Module):
    """A mean over the words of a text, which ends in padding (id 0)."""

    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor], padding: int | None) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 16, padding_idx=padding)
        self.head = nn.Linear(16, 4)
        self.pool = pool

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.tanh(self.pool(self.words(ids), ids)))
        return scores


def inverted(h: Tensor, ids: Tensor) -> Tensor:
    return (h * (ids == 0).float()[..., None]).sum(1)


def inverted_without_floats(h: Tensor, ids: Tensor) -> Tensor:
    return (h * (ids == 0)[..., None]).mean(1)


def right(h: Tensor, ids: Tensor) -> Tensor:
    kept = (ids != 0).float()[..., None]
    return (h * kept).sum(1) / kept.sum(1)


def all_of_them(h: Tensor, ids: Tensor) -> Tensor:
    return (h * torch.ones_like(ids)[..., None]).mean(1)


def one_word_only(h: Tensor, ids: Tensor) -> Tensor:
    """What it keeps differs from text to text."""
    first = torch.arange(ids.shape[1]) == 0
    return (h * first.float()[None, :, None]).sum(1)


def by_element(h: Tensor, ids: Tensor) -> Tensor:
    return (h * (torch.rand_like(h) > 0.1)).mean(1)


def found(pool: Callable[[Tensor, Tensor], Tensor], padding: int | None) -> list[str]:
    torch.manual_seed(0)
    ids = torch.randint(1, 30, (24, 32, LONGEST))
    ids[torch.arange(LONGEST) >= torch.randint(3, LONGEST, (24, 32, 1))] = 0
    labels = ids[..., 0] % 4
    model = Words(pool, padding)
    recipe = Recipe(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data=list(zip(ids, labels, strict=True)),
    )
    told = [one for one in diagnose(recipe, 24) if one.code == "ND116"]
    assert all("it keeps only positions that all hold the same" in one.title for one in told)
    return [one.culprit.location.code for one in told if one.culprit.location is not None]


@pytest.mark.parametrize("padding", [None, 0])
@pytest.mark.parametrize("pool", [inverted, inverted_without_floats])
def test_a_mask_that_keeps_the_padding(
    pool: Callable[[Tensor, Tensor], Tensor], padding: int | None
) -> None:
    (line,) = found(pool, padding)
    assert "ids == 0" in line


@pytest.mark.parametrize("pool", [right, all_of_them, one_word_only, by_element])
def test_masks_that_keep_something(pool: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert found(pool, 0) == []
