"""How many samples a batch holds, and taking some of them, in the forms that collate functions
give."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from nanodoc.experiments.samples import rows_of
from nanodoc.tensors.nested import batch_size, leading_size

Pair = namedtuple("Pair", "images boxes")


def boxes(n: int) -> torch.Tensor:
    return torch.zeros(n, 4)


IMAGES = [torch.zeros(3, 8, 8 + i) for i in range(5)]
TARGETS = [{"boxes": boxes(i), "label": torch.tensor(i)} for i in range(5)]


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        ((torch.zeros(6, 3), torch.zeros(6)), 6),
        ([torch.zeros(6, 3), torch.zeros(6)], 6),
        ({"x": torch.zeros(6, 3), "name": ["a"] * 6}, 6),
        (tuple(zip(*zip(IMAGES, TARGETS, strict=True), strict=True)), 5),
        ((IMAGES, [boxes(i) for i in range(5)]), 5),
        (Pair(IMAGES, TARGETS), 5),
        ({"images": IMAGES, "boxes": [boxes(i) for i in range(5)]}, 5),
        ((torch.zeros(5, 3, 8, 8), [boxes(i) for i in range(5)]), 5),
        # as many images as channels
        (([torch.zeros(3, 8, 8)] * 3, [boxes(i + 1) for i in range(3)]), 3),
        (list(zip(IMAGES, TARGETS, strict=True)), 5),  # never put together
        (TARGETS, 5),
        (([torch.zeros(6, 3), torch.zeros(6, 3)], torch.zeros(6)), 6),  # two views of six images
        ([[torch.zeros(6, 3), torch.zeros(6)], [torch.zeros(6, 3), torch.zeros(6)]], 6),
        # labels of all samples in one row
        ((torch.zeros(8, 1, 4, 9), torch.zeros(8), torch.zeros(46), torch.zeros(8)), 8),
        ([torch.zeros(8, 3), torch.zeros(20, 2), torch.zeros(8)], 8),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 8), torch.zeros(2, 9, 8)], 3),  # ragged images
        ({"nodes": torch.zeros(4, 3), "edges": torch.zeros(2, 9)}, None),
    ],
)
def test_the_number_of_samples(batch: Any, size: int | None) -> None:
    assert batch_size(batch) == size
    if size is not None:
        assert leading_size(batch) == size


def test_rows_of_fields_are_taken_from_every_field() -> None:
    # three images of three channels
    images = [torch.full((3, 4, 4 + i), float(i)) for i in range(3)]
    part = rows_of((images, [boxes(i + 1) for i in range(3)], ["a", "b", "c"]), 3, [0, 2])
    assert [one.shape[2] for one in part[0]] == [4, 6]
    assert [len(one) for one in part[1]] == [1, 3]
    assert part[2] == ["a", "c"]


def test_rows_of_a_named_tuple() -> None:
    part = rows_of(Pair(IMAGES, TARGETS), 5, [4])
    assert (type(part), [len(one["boxes"]) for one in part.boxes]) == (Pair, [4])
