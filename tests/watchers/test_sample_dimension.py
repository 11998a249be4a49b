"""Whether the first dimension of a batch counts samples, and what is said where it is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from nanodoc.watchers.sample_dimension import count_samples
from tests.helpers import run_engine


def _kept(samples: Any) -> Any:
    return torch.utils.data.default_collate(samples)


def _loader(batch_size: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=batch_size, **options)


@pytest.mark.parametrize(
    ("data", "batch"),
    [
        ([], [torch.randn(16, 4), torch.zeros(16)]),
        ([], [torch.randn(16, 4), torch.zeros(16, 5)]),
        (_loader(16), [torch.randn(16, 16)]),
        (_loader(64), [torch.randn(32, 4)]),
    ],
)
def test_samples_are_counted(data: object, batch: Any) -> None:
    count, why = count_samples(data, [batch])
    assert (count, why) == (len(batch[0]), None)


@pytest.mark.parametrize(
    ("data", "batches", "why"),
    [
        ([], [], "the loop yields no batch"),
        ([], [7], "no tensor with a batch dimension in what the loop yields"),
        ([], [torch.tensor(7)], "no tensor with a batch dimension in what the loop yields"),
        ([], [(torch.zeros(3, 2), torch.zeros(4))], "differ in their first dimension"),
        ([], [torch.zeros(1, 4)], "the batch's first dimension is 1"),
        ([], [torch.zeros(0, 4)], "the batch's first dimension is 0"),
        ([], [torch.zeros(8, 4)], "counts samples or time steps"),
        (_loader(16), [torch.zeros(8, 16)], "is 8, but the DataLoader draws 16 samples"),
        (_loader(8, collate_fn=_kept), [torch.zeros(8, 8)], "two equal dimensions"),
    ],
)
def test_what_hides_the_samples_is_said(data: object, batches: list[Any], why: str) -> None:
    assert why in (count_samples(data, batches)[1] or "")


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda m, x: x @ m.layer.weight.T, "the step calls neither the model nor a part of it"),
        (lambda m, x: m.layer(x), ""),
        (lambda m, x: m(torch.zeros_like(x)), "sample 0 has no input to vary"),
        (lambda m, x: m(x.repeat(2, 1)), ""),
        (lambda m, x: m(x), ""),
    ],
)
def test_why_a_leak_was_not_looked_for(call: Callable[..., torch.Tensor], why: str) -> None:
    model = Linear()
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: call(m, b[0]).square().mean(),
        data=_loader(8),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    told = dict(run_engine(recipe, steps=3).notes).get("cross-sample leak", "")
    assert told.startswith(why)
    assert bool(told) == bool(why)
