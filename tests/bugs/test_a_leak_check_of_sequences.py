"""Attention over the batch on purpose (the batch given as one sequence) was taken for swapped
dimensions. And a model that reads nothing of a sample, since its attention runs along the batch, was told to be
collapsed, without a line."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from nanodoc import Recipe
from tests.helpers import diagnose


class Relates(nn.Module):
    """A layer that lets the samples of a batch attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.relate, self.out = (
            nn.Linear(6, 8),
            nn.MultiheadAttention(8, 2),
            nn.Linear(8, 3),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.body(x).unsqueeze(1)
        return self.out((h + self.relate(h, h, h)[0]).squeeze(1))  # type: ignore[no-any-return]


def test_a_batch_given_as_one_sequence_is_meant() -> None:
    torch.manual_seed(0)
    model = Relates()
    data = DataLoader(TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,))), batch_size=8)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    assert diagnose(recipe, steps=3) == ()


class Classifier(nn.Module):
    """Reads one place of each sequence, which attends to the others."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.first = nn.Parameter(torch.zeros(1, 1, 8))
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=batch_first)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = torch.cat([self.first.expand(len(x), -1, -1), self.words(x)], 1)
        return self.head(self.encoder(words)[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("batch_first", [False, True])
def test_a_place_that_reads_its_own_place_of_other_samples(batch_first: bool) -> None:
    torch.manual_seed(0)
    model = Classifier(batch_first=batch_first)
    x = torch.randint(0, 20, (64, 5))
    data = DataLoader(TensorDataset(x, x[:, 2] % 3), batch_size=16)
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found = [f for f in diagnose(recipe, steps=12) if f.severity == "critical"]
    assert [f.code for f in found] == ([] if batch_first else ["ND513"])
    if found:
        assert found[0].culprit.location is not None
        assert "self.encoder(words)" in found[0].culprit.location.code
        assert "not even its own" in found[0].explanation
