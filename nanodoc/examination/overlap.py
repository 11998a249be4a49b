"""Samples that are both trained on and validated on: by their numbers where both parts are taken
from one data set, else by their values."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Subset

from nanodoc.examination.sample import parts_of, seed_all
from nanodoc.facts.items import SplitOverlap

_LOOKED_AT = 64  # samples of the validation
_MOST_DRAWN = 20_000  # samples of the training
_MOST_ROWS = 500_000  # of a part: reading the numbers of more takes too long
_VALUES = 16  # different numbers in a sample: those of fewer are alike by chance
_ALIKE = 0.02  # share of samples that are alike within one part: copies say nothing there


def split_overlap(training: Any, parts: Sequence[Any], until: float) -> SplitOverlap | None:
    """Of the first of the `parts` that a training is validated on; None where one of them has no
    sample of the training, or where that can't be told until the clock says `until`."""
    found = [_overlap(number, training, part, until) for number, part in enumerate(parts)]
    return found[0] if found and all(each is not None for each in found) else None


def _overlap(number: int, training: Any, validation: Any, until: float) -> SplitOverlap | None:
    if max(len(training), len(validation)) > _MOST_ROWS:
        return None
    (base, numbers), (other, theirs) = _rows(training), _rows(validation)
    if base is other:
        both = set(numbers) & set(theirs)
        shared, looked_at = len(both), len(theirs)
    else:
        shared, looked_at = _by_values(training, validation, until)
    if not shared:
        return None
    return SplitOverlap(
        number=number,
        shared=shared,
        looked_at=looked_at,
        validation=len(validation),
        training=len(training),
        by_index=base is other,
    )


def _rows(dataset: Any) -> tuple[Any, list[int]]:
    """(the data set that a part was taken from, the numbers of its samples there)"""
    numbers = list(range(len(dataset)))
    while isinstance(dataset, Subset):
        numbers = [int(dataset.indices[number]) for number in numbers]
        dataset = dataset.dataset
    return dataset, numbers


def _by_values(training: Any, validation: Any, until: float) -> tuple[int, int]:
    """(how many samples are in both, how many were looked at)"""
    size = len(validation)
    step = -(-size // _LOOKED_AT) or 1
    theirs = list(_digests(validation, range(0, size, step), until))
    wanted = set(theirs)
    if len(theirs) < 2 or len(theirs) - len(wanted) > _ALIKE * len(theirs):
        return 0, 0
    drawn = list(_digests(training, range(min(len(training), _MOST_DRAWN)), until))
    if len(drawn) - len(set(drawn)) > _ALIKE * len(drawn):
        return 0, 0
    return len(wanted & set(drawn)), len(theirs)


def _digests(dataset: Any, numbers: Iterable[int], until: float) -> Iterator[bytes]:
    """One of each sample; nothing of samples that hold few values."""
    for number in itertools.takewhile(lambda _: time.monotonic() < until, numbers):
        seed_all(0)
        parts = [part.contiguous() for _, part in parts_of(dataset[number])]
        if max((len(torch.unique(part)) for part in parts), default=0) >= _VALUES:
            digest = hashlib.sha256()
            for part in parts:
                digest.update(part.numpy().tobytes())
            yield digest.digest()
