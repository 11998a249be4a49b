"""Samplers that favour the class that is frequent already, and those that even the classes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, WeightedRandomSampler

from nanodoc import Recipe, examine

LABELS = torch.tensor([0] * 240 + [1] * 40 + [2] * 20)
EVEN = torch.tensor([0, 1, 2] * 100)

Weights = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def told(labels: torch.Tensor, weights: Weights, *, last: bool = True) -> list[str]:
    torch.manual_seed(0)
    x = torch.randn(300, 6)
    data = TensorDataset(x, labels) if last else TensorDataset(labels, x)
    chosen = weights(torch.bincount(labels).double(), labels)
    model = nn.Linear(6, 3)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: nn.functional.cross_entropy(
            model(batch[not last]), batch[last]
        ),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=DataLoader(data, 16, sampler=WeightedRandomSampler(chosen, 300)),
    )
    return [found.code for found in examine(recipe, steps=20).findings if found.code == "ND129"]


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(
    "weights",
    [
        lambda counts, labels: (counts / counts.sum())[labels],
        lambda counts, labels: (counts**2)[labels],
        lambda counts, labels: (labels == 0).double() + 0.01,
        lambda counts, labels: 1 / counts,  # of the classes, and not of the samples
    ],
)
def test_the_frequent_class_is_favoured(weights: Weights, last: bool) -> None:
    assert told(LABELS, weights, last=last) == ["ND129"]


@pytest.mark.parametrize(
    ("labels", "weights"),
    [
        (LABELS, lambda counts, labels: (1 / counts)[labels]),
        (LABELS, lambda counts, labels: counts.rsqrt()[labels]),
        (LABELS, lambda counts, labels: torch.ones(300)),
        (LABELS, lambda counts, labels: torch.tensor([1 / 240, 1 / 40, 0.0])[labels]),
        (LABELS, lambda counts, labels: torch.ones(32)),  # the data set has grown since
        (LABELS, lambda counts, labels: counts[labels] * torch.linspace(0.5, 1.5, 300)),
        (EVEN, lambda counts, labels: torch.tensor([4.0, 1.0, 1.0])[labels]),
    ],
)
def test_classes_are_evened_out_or_weights_are_not_theirs(
    labels: torch.Tensor, weights: Weights
) -> None:
    assert told(labels, weights) == []


class OfClasses(BatchSampler):
    """Draws a class, and then a sample of it."""

    def __iter__(self) -> Iterator[list[int]]:
        for chosen in super().__iter__():
            yield [int((one == LABELS).nonzero()[0]) for one in chosen]


def test_a_sampler_of_classes_has_a_weight_for_each() -> None:
    torch.manual_seed(0)
    sampler = OfClasses(WeightedRandomSampler(torch.ones(3), 64), 8, drop_last=False)
    model = nn.Linear(6, 3)
    recipe = Recipe(
        model=model,
        criterion=nn.CrossEntropyLoss(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=DataLoader(TensorDataset(torch.randn(300, 6), LABELS), batch_sampler=sampler),
    )
    assert "ND129" not in [found.code for found in examine(recipe, steps=8).findings]
