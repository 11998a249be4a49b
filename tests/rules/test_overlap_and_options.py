"""Losses of overlap that are minimised, and what looks like them; criteria that leave a label out; schedules that wait
for the wrong end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from tests.helpers import diagnose

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def codes(loss: Loss) -> set[str]:
    torch.manual_seed(0)
    x = torch.rand(64, 1, 8, 8)
    mask = (x > 0.6).float()
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: loss(model(batch[0]), batch[1]),
        data=list(zip(x.split(16), mask.split(16), strict=True)),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    )
    return {f.code for f in diagnose(recipe, 12) if f.severity != "info"}


def dice(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    share = scores.sigmoid()
    return 2 * (share * mask).sum() / (share.sum() + mask.sum() + 1)


def iou(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    share = scores.sigmoid()
    both = (share * mask).sum((1, 2, 3))
    return (both / (share.sum((1, 2, 3)) + mask.sum((1, 2, 3)) - both)).mean()


@pytest.mark.parametrize("loss", [dice, iou, lambda s, m: dice(s, m) + 0.1])
def test_an_overlap_that_is_minimised(loss: Loss) -> None:
    assert "ND659" in codes(loss)


@pytest.mark.parametrize(
    "loss",
    [
        lambda s, m: 1 - dice(s, m),
        lambda s, m: -iou(s, m),
        lambda s, m: -1 * dice(s, m),
        lambda s, m: 3.0 + dice(s, m) / -2,
        lambda s, m: -torch.log(dice(s, m)),
        lambda s, m: 1.0 - iou(s, m) + F.binary_cross_entropy_with_logits(s, m),
        lambda s, m: dice(s, 1 - m) - dice(s, m),
        # a mean over what is marked is no overlap
        lambda s, m: (
            (F.binary_cross_entropy_with_logits(s, m, reduction="none") * m).sum() / m.sum()
        ),
    ],
)
def test_an_overlap_that_is_not(loss: Loss) -> None:
    assert "ND659" not in codes(loss)


def test_a_padding_that_is_left_out() -> None:
    """One number of many positions is no class."""
    torch.manual_seed(0)
    ids = torch.randint(1, 9, (64, 6))
    ids[:, 4:] = 0
    model = nn.Sequential(nn.Embedding(9, 16), nn.Linear(16, 9))

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), ignore_index=0)

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        data=list(ids.split(16)),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    )
    assert "ND157" not in {f.code for f in diagnose(recipe, 12)}


class Cells(nn.Module):
    def __init__(self, *, carried: bool) -> None:
        super().__init__()
        self.carried = carried
        self.cell, self.out = nn.LSTMCell(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for place in range(x.shape[1]):
            state = self.cell(x[:, place], state if self.carried else None)
        assert state is not None
        return self.out(state[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("carried", [True, False])
def test_the_state_of_a_cell(carried: bool) -> None:
    torch.manual_seed(0)
    model = Cells(carried=carried)
    x = torch.randn(64, 6, 4)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        data=[(a, (a[:, 0, 0] > 0).long()) for a in x.split(16)],
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-2),
    )
    assert ("ND158" in {f.code for f in diagnose(recipe, 12)}) != carried
