"""Letters of different lengths, longest first, and what they are about."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

Letter = tuple[torch.Tensor, int]
Batch = tuple[torch.Tensor, torch.Tensor]


def _letters() -> list[Letter]:
    drawn = torch.Generator().manual_seed(3)
    lengths = torch.randint(4, 14, (96,), generator=drawn).tolist()
    words = [torch.randint(1, 40, (n,), generator=drawn) for n in lengths]
    return [(letter, int(letter.float().mean() > 20)) for letter in words]


def _longest_first(letters: list[Letter]) -> Batch:
    about = torch.tensor([topic for _, topic in letters])
    words = sorted((letter for letter, _ in letters), key=len, reverse=True)
    return nn.utils.rnn.pad_sequence(words, batch_first=True), about


def _whole_letters(letters: list[Letter]) -> Batch:
    letters = sorted(letters, key=lambda letter: len(letter[0]), reverse=True)
    about = torch.tensor([topic for _, topic in letters])
    return nn.utils.rnn.pad_sequence([words for words, _ in letters], batch_first=True), about


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(40, 12, padding_idx=0), nn.Linear(12, 2)

    def forward(self, words: torch.Tensor) -> Any:
        counts = (words > 0).sum(1, keepdim=True)
        return self.head(self.embed(words).sum(1) / counts)


def _loss(model: Any, batch: Batch) -> torch.Tensor:
    words, about = batch
    return F.cross_entropy(model(words), about)


def _recipe(collate: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Reader()
    data: Any = DataLoader(_letters(), 16, shuffle=True, collate_fn=collate)  # type: ignore[arg-type]  # a list is a data set
    return {
        "model": model,
        "loss_fn": _loss,
        "data": data,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-2),
        "max_steps": 12,
    }


def sick() -> dict[str, Any]:
    return _recipe(_longest_first)


def healthy() -> dict[str, Any]:
    return _recipe(_whole_letters)
