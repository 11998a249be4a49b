"""Where a recurrent network is read: behind the padding, at each sequence's own end, or packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

from nanodoc import Recipe, examine


class Judge(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.words = nn.Embedding(30, 8, padding_idx=0)
        self.read = (nn.GRU if "gru" in way else nn.LSTM)(
            8, 8, batch_first="time" not in way, bidirectional="both" in way
        )
        self.judge = nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor) -> Any:
        lengths = (ids != 0).sum(1)
        words = self.words(ids)
        if self.way == "packed":
            packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
            return self.judge(self.read(packed)[1][0][-1])
        output, state = self.read(words.transpose(0, 1) if "time" in self.way else words)
        if "state" in self.way:
            return self.judge(state[-1])
        if "time" in self.way:
            return self.judge(output[-1])
        if self.way == "mean":
            return self.judge(output.mean(1))
        if self.way == "own end":
            return self.judge(output[torch.arange(len(ids)), lengths - 1])
        return self.judge(output[:, -1])


def told(way: str, *, left: bool = False) -> list[tuple[str, str]]:
    torch.manual_seed(0)
    rows = [torch.randint(1, 30, (n,)) for n in torch.randint(5, 60, (160,)).tolist()]

    def collate(chosen: Any) -> Any:
        ids = [row.flip(0) if left else row for row, _ in chosen]
        padded = pad_sequence(ids, batch_first=True)
        return padded.flip(1) if left else padded, torch.tensor([label for _, label in chosen])

    model = Judge(way)
    recipe = Recipe(
        model=model,
        loss_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        data=torch.utils.data.DataLoader(
            [(row, int(row[-1] > 15)) for row in rows], 16, collate_fn=collate
        ),
    )
    found = examine(recipe, steps=10).findings
    return [(f.code, f.severity) for f in found if f.code == "ND130"]


@pytest.mark.parametrize("way", ["last", "gru last", "gru state", "time last", "time gru state"])
def test_it_is_read_behind_the_padding(way: str) -> None:
    assert told(way) == [("ND130", "warning")]


@pytest.mark.parametrize("way", ["own end", "packed", "mean", "both gru state"])
def test_it_is_read_at_its_end(way: str) -> None:
    assert told(way) == []


def test_padding_in_front_is_no_end() -> None:
    assert told("last", left=True) == []
