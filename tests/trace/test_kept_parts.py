"""The line that makes what a data set keeps, and what it gives by a method of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nanodoc.trace.returned import line_in_data, line_of_part
from tests.helpers import line_of, marked


class Examples:
    def __init__(self) -> None:
        self.examples: list[dict[str, torch.Tensor]] = []
        for _ in range(4):
            chunk = torch.arange(9)
            self.examples.append({"ids": chunk[:-1], "labels": chunk[1:]})  # appended

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


class Columns:
    def __init__(self, given: torch.Tensor) -> None:
        self.x = given
        self.y = given.roll(1)  # rolled

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Windows(Columns):
    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index + 1]  # ahead


class Kept(Columns):
    def __init__(self, given: torch.Tensor) -> None:
        self.x = self.y = given

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]  # as they are


class Listed:
    def __init__(self) -> None:
        self.pairs = [(torch.zeros(2), torch.ones(2) / n) for n in range(1, 5)]  # listed

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


class ByMethod:
    def __init__(self) -> None:
        self.draw = drawn

    def __iter__(self) -> Iterator[Any]:
        yield self.draw()


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.zeros(3)
    y = x + 1  # drawn
    return x, y


class Loader:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


@pytest.mark.parametrize(
    ("data", "path", "line"),
    [
        (Loader(Examples()), ("labels",), "appended"),
        (Loader(Columns(torch.zeros(4))), (1,), "rolled"),
        (Loader(Windows(torch.zeros(4))), (1,), "ahead"),
        (Loader(Kept(torch.zeros(4))), (1,), "as they are"),
        (Loader(Listed()), (1,), "listed"),
        (ByMethod(), (1,), "drawn"),
    ],
)
def test_the_line_is_that_which_makes_it(data: Any, path: Any, line: str) -> None:
    found = line_in_data(data, path)
    assert found is not None
    assert found.line == line_of(__file__, f"# {line}")


def collate(items: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = torch.stack(items)
    labels = torch.full_like(ids, -100)
    labels[:, :-1] = ids[:, 1:]  # filled
    labels[ids == 0] = -100
    return {"ids": ids, "labels": labels}


def test_labels_that_are_filled_where_they_stand() -> None:
    found = line_of_part(collate, ("labels",))
    assert found is not None
    assert found.line == marked(__file__, "filled")
