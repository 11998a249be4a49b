"""Collate functions: whether all parts of a batch hold its samples in one order."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from nanodoc.examination.reordered import reordered_batch


class Data:
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Any:
        drawn = torch.Generator().manual_seed(index)
        words = torch.randint(1, 30, (4 + index * 7 % 11,), generator=drawn)
        return {"words": words.tolist(), "label": index * 3 % 2, "weight": index / 20}


def in_order(samples: list[Any]) -> Any:
    words = [torch.tensor(sample["words"]) for sample in samples]
    return pad_sequence(words, batch_first=True), torch.tensor([s["label"] for s in samples])


def sorted_whole(samples: list[Any]) -> Any:
    return in_order(sorted(samples, key=lambda sample: -len(sample["words"])))


def words_sorted(samples: list[Any]) -> Any:
    words, labels = in_order(samples)
    return words[(words > 0).sum(1).argsort(descending=True)], labels


def labels_reversed(samples: list[Any]) -> Any:
    words, labels = in_order(samples)
    return {"words": words, "label": labels.flip(0), "weight": torch.arange(len(samples)) / 20}


def weights_sorted(samples: list[Any]) -> Any:
    """Both parts have moved, together."""
    words, _ = sorted_whole(samples)
    weights = [s["weight"] for s in sorted(samples, key=lambda s: -len(s["words"]))]
    return {"words": words, "weights": torch.tensor(weights)}


def pairs(samples: list[Any]) -> Any:
    """Each with another one, which is no label."""
    words, labels = in_order(samples)
    return words, labels, words.flip(0)


def another_draw(samples: list[Any]) -> Any:
    """Strangers, drawn for each batch."""
    words, labels = in_order(samples)
    return words[torch.randperm(len(words))], labels


def the_next_one(samples: list[Any]) -> Any:
    words, labels = in_order(samples)
    return words.roll(1, 0), labels


def words_counted(samples: list[Any]) -> Any:
    return torch.tensor([len(sample["words"]) for sample in samples]).sort().values


@pytest.mark.parametrize(
    ("collate", "moved"),
    [
        (in_order, None),
        (sorted_whole, None),
        (words_sorted, "[0]"),
        (weights_sorted, None),
        (words_counted, None),
        (another_draw, None),
        (the_next_one, None),
        (None, None),
        (torch.utils.data.default_collate, None),
    ],
)
def test_order(collate: Any, moved: str | None) -> None:
    found = reordered_batch(Data(), collate, time.monotonic() + 60)
    assert (found.moved if found is not None else None) == moved
    if found is not None:
        assert found.line is not None
        assert "argsort" in found.line.code


def test_nothing_is_said_when_time_is_up() -> None:
    assert reordered_batch(Data(), words_sorted, time.monotonic() - 1) is None


@pytest.mark.parametrize("collate", [labels_reversed, pairs])
def test_what_else_moves(collate: Any) -> None:
    """Labels of two classes tell no order. A second view of the sequences in another order beside
    the first, with labels for the first, is a pair with a stranger, and meant."""
    assert reordered_batch(Data(), collate, time.monotonic() + 60) is None
