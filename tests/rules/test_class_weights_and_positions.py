"""Class weights that favour the frequent class, positions that are all one; and what only looks so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanodoc import Recipe, examine

LABELS = torch.tensor([0] * 240 + [1] * 60 + [2] * 20)[torch.randperm(320)]


def codes(model: Any, loss_fn: Any, data: Any, wanted: str) -> list[str]:
    recipe = Recipe(
        model=model,
        loss_fn=loss_fn,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data=torch.utils.data.DataLoader(data, 64),
    )
    return [f.code for f in examine(recipe, steps=8).findings if f.code == wanted]


def weighted(weights: torch.Tensor, labels: torch.Tensor = LABELS, *, nll: bool = False) -> Any:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(320, 5), labels)

    def loss_fn(model: Any, batch: Any) -> torch.Tensor:
        if nll:
            return F.nll_loss(model(batch[0]).log_softmax(1), batch[1], weights)
        return F.cross_entropy(model(batch[0]), batch[1], weight=weights)

    return codes(nn.Linear(5, 3), loss_fn, data, "ND131")


@pytest.mark.parametrize("nll", [True, False])
def test_the_frequent_class_weighs_more(nll: bool) -> None:
    assert weighted(torch.bincount(LABELS).float(), nll=nll) == ["ND131"]


@pytest.mark.parametrize(
    "weights",
    [
        1 / torch.bincount(LABELS).float(),
        torch.ones(3),
        torch.tensor([0.0, 1.0, 2.0]),  # padding is left out
        torch.tensor([1.0, 1.0, 0.0]),  # and so is a rare class
        torch.tensor([1.2, 1.0, 1.0]),
    ],
)
def test_it_does_not(weights: torch.Tensor) -> None:
    assert weighted(weights) == []


def test_classes_are_as_frequent() -> None:
    assert weighted(torch.tensor([5.0, 1.0, 1.0]), torch.arange(320) % 3) == []


Ids = Callable[[torch.Tensor], torch.Tensor]


class Reader(nn.Module):
    def __init__(self, ids: Ids, rows: int) -> None:
        super().__init__()
        self.words, self.others = nn.Embedding(20, 8), nn.Embedding(rows, 8)
        self.kinds = nn.Embedding(2, 8)
        self.out = nn.Linear(8, 2)
        self.ids = ids

    def forward(self, ids: torch.Tensor) -> Any:
        words = self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.others(self.ids(ids))
        return self.out(torch.tanh(words).mean(1))


def read(ids: Ids, *, rows: int = 16, length: int = 12) -> list[str]:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randint(20, (320, length)), LABELS.clamp(max=1))
    return codes(
        Reader(ids, rows),
        lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        data,
        "ND132",
    )


def test_positions_are_all_one() -> None:
    assert read(torch.zeros_like) == ["ND132"]
    assert read(lambda ids: torch.full_like(ids, 3)) == ["ND132"]


class OfLanguages(Reader):
    def forward(self, ids: torch.Tensor) -> Any:
        places = self.words(torch.arange(ids.shape[1]).expand_as(ids))
        words = (self.words(ids) + places) * 2.0 + self.others(self.ids(ids))
        return self.out(torch.tanh(words).mean(1))


def test_a_table_of_languages_beside_positions() -> None:
    data = torch.utils.data.TensorDataset(torch.randint(20, (320, 12)), LABELS.clamp(max=1))
    model = OfLanguages(torch.zeros_like, 16)
    assert codes(model, lambda model, b: F.cross_entropy(model(b[0]), b[1]), data, "ND132") == []


class Recurrent(Reader):
    def __init__(self, ids: Ids, rows: int) -> None:
        super().__init__(ids, rows)
        self.layer = nn.GRU(8, 8, batch_first=True)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.out(self.layer(self.words(ids) + self.others(self.ids(ids)))[0].mean(1))


def test_a_language_for_each_sentence() -> None:
    torch.manual_seed(0)
    sentences = torch.randint(20, (320, 12))
    data = torch.utils.data.TensorDataset(sentences, LABELS.clamp(max=1), torch.full((320, 1), 7))

    def loss(model: Any, batch: Any) -> Any:
        model.ids = batch[2].expand_as
        return F.cross_entropy(model(batch[0]), batch[1])

    assert codes(Reader(torch.zeros_like, 16), loss, data, "ND132") == []


def test_a_recurrent_layer_knows_the_order() -> None:
    data = torch.utils.data.TensorDataset(torch.randint(20, (320, 12)), LABELS.clamp(max=1))
    model = Recurrent(torch.zeros_like, 16)
    assert codes(model, lambda model, b: F.cross_entropy(model(b[0]), b[1]), data, "ND132") == []


def test_positions_differ_or_are_none() -> None:
    assert read(lambda ids: torch.arange(ids.shape[1]).expand_as(ids)) == []
    assert read(torch.zeros_like, rows=4) == []  # kinds of segments
    assert read(torch.zeros_like, length=6) == []


@pytest.mark.parametrize("inverted", [True, False])
def test_a_weight_of_the_positive_class(inverted: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(320, 4)
    rare = (x[:, 0] > 1.0).float()
    odds = rare.mean() / (1 - rare.mean())
    loss = nn.BCEWithLogitsLoss(pos_weight=odds if inverted else 1 / odds)
    found = codes(
        nn.Linear(4, 1),
        lambda model, batch: loss(model(batch[0]).squeeze(1), batch[1]),
        torch.utils.data.TensorDataset(x, rare),
        "ND131",
    )
    assert found == (["ND131"] if inverted else [])
