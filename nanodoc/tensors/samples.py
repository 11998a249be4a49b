"""Which samples rows of a batch's tensors belong to. In a packed batch the samples lie one behind
the other, and another tensor of the batch says where each begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from nanodoc.tensors.nested import tensors_of


def samples_of(rows: Sequence[int], tensor: torch.Tensor, batch: Any, count: int) -> list[int]:
    """The samples, in order, that rows of the first dimension of a `tensor` of the `batch` belong
    to, which has `count` samples; empty where nothing tells."""
    size = tensor.shape[0]
    if size == count:
        return list(rows)
    owners = next(owners_of(batch, size, count), None)
    return [] if owners is None else list(dict.fromkeys(int(owners[row]) for row in rows))


def owners_of(batch: Any, size: int, count: int) -> Iterator[torch.Tensor]:
    """The sample of each of `size` rows, as a tensor of the batch says: by the length of each of
    the `count` samples, by the row where each begins and where the last ends, or by the sample of
    each row."""
    for told in tensors_of(batch):
        if told.dim() != 1 or told.is_floating_point() or told.is_complex() or told.is_nested:
            continue
        values = told.detach().cpu().long()
        if len(values) == count + 1 and int(values[0]) == 0 and int(values[-1]) == size:
            values = values.diff()
        if len(values) == count and int(values.sum()) == size and int(values.min()) >= 0:
            yield torch.arange(count).repeat_interleave(values)
        elif len(values) == size and _numbers(values, count):
            yield values


def _numbers(values: torch.Tensor, count: int) -> bool:
    """Those of the samples, from 0, each for as many rows as it has."""
    begins = int(values[0]) == 0 and int(values[-1]) == count - 1
    return begins and bool(((values.diff() == 0) | (values.diff() == 1)).all())
