"""A small language model of tunes that end, padded with the note of the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader

END = 0

Tune = torch.Tensor
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _tunes() -> list[Tune]:
    drawn = torch.Generator().manual_seed(1)
    lengths = torch.randint(5, 14, (64,), generator=drawn).tolist()
    begins = [int(torch.randint(1, 12, (), generator=drawn)) for _ in lengths]
    tunes = [[1 + (b + 2 * i) % 23 for i in range(n)] for b, n in zip(begins, lengths, strict=True)]
    return [torch.tensor([*tune, END]) for tune in tunes]


def _padded(tunes: list[Tune]) -> tuple[torch.Tensor, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence(tunes, batch_first=True, padding_value=END)
    lengths = torch.tensor([len(tune) for tune in tunes])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def _by_token(tunes: list[Tune]) -> Batch:
    ids, mask = _padded(tunes)
    labels = ids.clone()
    labels[ids == END] = -100
    return ids, mask, labels


def _by_mask(tunes: list[Tune]) -> Batch:
    ids, mask = _padded(tunes)
    labels = ids.clone()
    labels[mask == 0] = -100
    return ids, mask, labels


def _first_half(tunes: list[Tune]) -> Batch:
    ids, mask, labels = _by_mask(tunes)
    for row, tune in enumerate(tunes):
        labels[row, len(tune) // 2 :] = -100
    return ids, mask, labels


def _second_half(tunes: list[Tune]) -> Batch:
    ids, mask, labels = _by_mask(tunes)
    for row, tune in enumerate(tunes):
        labels[row, : len(tune) // 2] = -100
    return ids, mask, labels


class Composer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(24, 16), nn.Embedding(16, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 24)

    def forward(self, ids: Any, mask: Any) -> Any:
        length = ids.shape[1]
        x = self.embed(ids) + self.places(torch.arange(length, device=ids.device))
        earlier = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        seen = earlier & (mask[:, None, :] == 1)
        heard = F.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), attn_mask=seen
        )
        return self.head(x + heard)


def _recipe(collate: Callable[[list[Tune]], Batch]) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Composer()

    def loss_fn(model: Any, batch: Any) -> Any:
        ids, mask, labels = batch
        scores = model(ids, mask)[:, :-1]
        return F.cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())

    return {
        "model": model,
        "data": DataLoader(_tunes(), batch_size=16, shuffle=True, collate_fn=collate),
        "loss_fn": loss_fn,
        "optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
    }


def sick_end() -> dict[str, Any]:
    return _recipe(_by_token)


def healthy_end() -> dict[str, Any]:
    return _recipe(_by_mask)


def sick_half() -> dict[str, Any]:
    return _recipe(_first_half)


def healthy_half() -> dict[str, Any]:
    return _recipe(_second_half)
