"""A picture and the one that is to be made of it, mirrored by different draws; two views of one
picture, which are to differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nanodoc import Recipe, examine
from tests.helpers import line_of


def mirrored(picture: torch.Tensor) -> torch.Tensor:
    """It is right by itself: who calls it twice is not."""
    return picture.flip(2) if torch.rand(()) < 0.5 else picture


class Pairs(Dataset[Any]):
    def __init__(self, way: str) -> None:
        generator = torch.Generator().manual_seed(0)
        rough = torch.rand(40, 1, 6, 6, generator=generator)
        self.pictures = F.interpolate(rough, size=24, mode="bicubic", align_corners=False)
        self.way = way

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Any:
        target = self.pictures[index]
        if self.way == "each":
            small = mirrored(F.avg_pool2d(target[None], 2)[0])
            return small, mirrored(target)  # the other
        if self.way == "both" and torch.rand(()) < 0.5:
            target = target.flip(2)
        small = F.avg_pool2d(target[None], 2)[0] if self.way != "noisy" else target
        if self.way == "small" and torch.rand(()) < 0.5:
            small = small.flip(2)  # by itself
        if self.way in ("noisy", "views") and torch.rand(()) < 0.5:
            target = target.flip(1)  # or this one
        if self.way == "others":
            small = F.avg_pool2d(self.pictures[index - 1][None], 2)[0]
            small = small.flip(2) if torch.rand(()) < 0.5 else small
        return small + 0.02 * torch.randn_like(small), target


def told(
    way: str, *, contrast: bool = False, self_too: bool = False
) -> list[tuple[str, int | None]]:
    torch.manual_seed(0)
    factor = 1 if way == "noisy" else 2
    model = nn.Sequential(nn.Conv2d(1, factor**2, 3, padding=1), nn.PixelShuffle(factor))

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        if contrast and self_too:
            own = torch.stack([F.mse_loss(model(F.avg_pool2d(p, 2)), p) for p in batch[1:]]).sum()
            return own + F.mse_loss(model(batch[0]).mean(), batch[0].mean())
        if not contrast:
            return F.mse_loss(model(batch[0]), batch[1])
        one, other = (model(part).flatten(1)[:, :64] for part in batch)
        return F.cross_entropy(one @ other.T, torch.arange(len(one)))

    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.Adam(model.parameters(), 1e-3),
        data=DataLoader(Pairs(way), 8),
    )
    found = examine(recipe, steps=10).findings
    return [
        (f.code, f.culprit.location.line if f.culprit.location else None)
        for f in found
        if f.code == "ND120"
    ]


@pytest.mark.parametrize(
    ("way", "line"), [("small", "by itself"), ("noisy", "or this one"), ("each", "the other")]
)
def test_one_of_them_is_mirrored(way: str, line: str) -> None:
    assert told(way) == [("ND120", line_of(__file__, f"# {line}"))]


@pytest.mark.parametrize(("way", "contrast"), [("both", False), ("views", True), ("others", False)])
def test_they_are_mirrored_alike_or_need_not_be(way: str, contrast: bool) -> None:
    assert told(way, contrast=contrast) == []


def test_each_view_is_compared_with_itself() -> None:
    assert told("views", contrast=True, self_too=True) == []
