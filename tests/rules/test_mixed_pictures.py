"""Pictures of a data set whose channels come last in the files and first in the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nanodoc.examination.mixed_pictures import mixed_picture
from nanodoc.examination.sample import Sample
from nanodoc.facts.items import MixedItem

H, W = 12, 16


def pictures(channels: int = 3) -> np.ndarray[Any, Any]:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (6, H, W, channels), dtype=np.uint8)


class Pictures:
    def __init__(self, way: Callable[[Any], Any], kept: Any) -> None:
        self.way, self.kept = way, kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        picture = self.kept[index]
        picture = self.way(picture)
        return picture, index % 2


class AtOnce(Pictures):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(self.kept[index]).view(3, H, W).float() / 255, index % 2


def found(dataset: Any) -> MixedItem | None:
    return mixed_picture(Sample(dataset, 2, time.monotonic() + 10))


def viewed(x: Any) -> torch.Tensor:
    return torch.from_numpy(x).view(3, H, W)


def scaled(x: Any) -> torch.Tensor:
    return (torch.from_numpy(x).float() / 255 - 0.5).reshape(3, H, W) / 0.25


def reshaped(x: Any) -> torch.Tensor:
    x = x.reshape(3, H, W).astype("float32")
    return torch.tensor(x)


def moved(x: Any) -> torch.Tensor:
    return torch.from_numpy(x).permute(2, 0, 1).contiguous()


def transposed(x: Any) -> torch.Tensor:
    return torch.tensor(np.transpose(x, (2, 0, 1)) / 255)


def flat(x: Any) -> torch.Tensor:
    return torch.from_numpy(x.reshape(3, H, W).copy())


@pytest.mark.parametrize("way", [viewed, scaled, reshaped])
def test_the_line_that_views(way: Callable[[Any], Any]) -> None:
    told = found(Pictures(way, pictures()))
    assert told is not None
    assert (told.index, told.given, told.made) == (2, (H, W, 3), (3, H, W))
    assert "view" in told.line.code or "reshape" in told.line.code


def test_what_is_read_and_viewed_in_one_line() -> None:
    told = found(AtOnce(viewed, pictures()))
    assert told is not None
    assert ".view(3, H, W)" in told.line.code


@pytest.mark.parametrize("way", [moved, transposed])
def test_a_dimension_that_is_moved(way: Callable[[Any], Any]) -> None:
    assert found(Pictures(way, pictures())) is None


def test_bytes_that_lie_with_the_channels_first() -> None:
    """As in the files of CIFAR: 3 · H · W numbers."""
    rows = pictures().reshape(6, -1)
    assert found(Pictures(flat, rows)) is None


def test_other_samples() -> None:
    class Rows(Pictures):
        def __getitem__(self, index: int) -> Any:
            return {"x": torch.randn(4), "y": 1}

    assert found(Rows(viewed, pictures())) is None
