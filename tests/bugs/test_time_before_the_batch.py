"""Sequences given time first, as torch's recurrent layers want them by default, were taken for a
batch that runs as time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from nanodoc import Recipe
from tests.helpers import diagnose


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(20, 8), nn.LSTM(8, 12), nn.Linear(12, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.embed(tokens))[0])  # type: ignore[no-any-return]


def codes_of(data: Any) -> list[str]:
    model = Language()
    recipe = Recipe(
        model=model,
        loss_fn=lambda m, b: F.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten()),
        data=data,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    return [finding.code for finding in diagnose(recipe, steps=3)]


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = pad_sequence(rows)  # [time, batch]
    return tokens[:-1], tokens[1:], torch.tensor([len(row) for row in rows])


@pytest.mark.parametrize("columns", [6, 7])
def test_columns_of_a_corpus(columns: int) -> None:
    corpus = torch.randint(0, 20, (40, columns))
    assert codes_of([(corpus[i : i + 7], corpus[i + 1 : i + 8]) for i in range(0, 28, 7)]) == []


@pytest.mark.parametrize("length", [9, 5])
def test_a_collate_function_that_pads_with_time_first(length: int) -> None:
    rows: Any = [torch.randint(1, 20, (length,)) for _ in range(16)]
    assert codes_of(DataLoader(rows, batch_size=4, collate_fn=padded)) == []


def test_samples_that_run_as_time_are_still_found() -> None:
    rows: Any = [(torch.randint(0, 20, (6,)), torch.randint(0, 20, (6,))) for _ in range(16)]
    assert codes_of(DataLoader(rows, batch_size=4)) == ["ND513"]
