"""Images and masks that a module in the step mirrors at random: by two draws, or by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe
from nanodoc.diagnosis.finding import Finding
from tests.helpers import diagnose


class Mirror(nn.Module):
    """Mirrors each sample or not; `again` repeats what the call before did."""

    last: torch.Tensor

    def forward(self, pictures: torch.Tensor, again: bool = False) -> torch.Tensor:
        if not again:
            self.last = torch.rand(len(pictures)) < 0.5
        return torch.where(self.last[:, None, None, None], pictures.flip(-1), pictures)


class Augmentation(nn.Module):
    """A module of the user's around it."""

    def __init__(self) -> None:
        super().__init__()
        self.mirror = Mirror()

    @torch.no_grad()
    def forward(self, images: torch.Tensor, masks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.mirror(images), self.mirror(masks)  # masks, too


def told(model: nn.Module, loss_fn: Any, data: list[Any]) -> list[Finding]:
    """The claims on augmentations; each at the line of the masks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    recipe = Recipe(model=model, optimizer=optimizer, loss_fn=loss_fn, data=data)
    claims = [f for f in diagnose(recipe, 10) if f.code == "ND120"]
    for claim in claims:
        assert claim.culprit.location is not None
        assert "# masks" in claim.culprit.location.code
    return claims


@pytest.mark.parametrize(
    ("how", "found"),
    [("two draws", True), ("one draw", False), ("images only", False), ("a module", True)],
)
def test_what_the_step_mirrors(how: str, found: bool) -> None:
    torch.manual_seed(0)
    model, mirror, both = nn.Conv2d(1, 1, 3, padding=1), Mirror(), Augmentation()

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images, masks = batch
        if how == "a module":
            images, masks = both(images, masks)
            return F.binary_cross_entropy_with_logits(model(images), masks)
        images = mirror(images)
        if how != "images only":
            masks = mirror(masks, again=how == "one draw")  # masks
        return F.binary_cross_entropy_with_logits(model(images), masks)

    data = []
    for _ in range(10):
        images = torch.randn(16, 1, 16, 16)
        masks = (F.avg_pool2d(images, 5, 1, 2) > 0.05).float()
        data.append((images, masks))
    claims = told(model, loss_fn, data)
    assert bool(claims) == found


class Shift(nn.Module):
    """Moves each sample by a part of a pixel and more, with interpolation: no mirror is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.by = torch.zeros(0)

    def forward(self, pictures: torch.Tensor, again: bool = False) -> torch.Tensor:
        if not again:
            self.by = torch.rand(len(pictures), 2) - 0.5
        same = torch.eye(2, 3).repeat(len(pictures), 1, 1)
        grid = F.affine_grid(same, list(pictures.shape), align_corners=False)
        moved = grid + self.by[:, None, None]
        return F.grid_sample(pictures, moved, align_corners=False)


class Noise(nn.Module):
    def forward(self, pictures: torch.Tensor, again: bool = False) -> torch.Tensor:
        return pictures + 0.1 * torch.randn_like(pictures)


@pytest.mark.parametrize(
    ("module", "again", "found"),
    [(Shift, False, True), (Shift, True, False), (Noise, False, False)],
)
def test_a_module_that_draws_for_both(module: type[nn.Module], again: bool, found: bool) -> None:
    torch.manual_seed(0)
    model, augment = nn.Conv2d(1, 1, 3, padding=1), module()

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        images = augment(batch[0])
        masks = augment(batch[1], again=again)  # masks
        return F.binary_cross_entropy_with_logits(model(images), (masks > 0.5).float())

    data = []
    for _ in range(10):
        masks = torch.zeros(16, 1, 16, 16)
        masks[:, :, 4:9, 5:11] = 1.0
        data.append((masks + 0.3 * torch.randn(16, 1, 16, 16), masks))
    claims = told(model, loss_fn, data)
    assert bool(claims) == found
    if found:
        assert "drew new random numbers for each" in claims[0].explanation
