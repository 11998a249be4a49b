"""Samples that a collate function reads nothing of: what it makes stays the same with other samples
in their place."""

from __future__ import annotations

import contextlib
import copy
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from nanodoc.examination.sample import as_tensor, same, seed_all
from nanodoc.facts.items import UncollatedFacts
from nanodoc.tensors.nested import keys_of
from nanodoc.trace.returned import code_of, line_of_part

_MOST = 16  # samples
_FEWEST = 4
_DEPTH = 4
_UNREAD = 0.5  # of the samples: a batch that is filled up to a length may leave out the last


class _Unknown(Exception):
    """A batch holds what can't be compared."""


def uncollated(
    dataset: Any, collate: Callable[[list[Any]], Any] | None, batch: int | None, until: float
) -> UncollatedFacts | None:
    """`batch`: how many samples a batch is drawn of. None where most of them are read, where the
    user has no collate function, or where that can't be told by `until`."""
    if collate is None or collate is default_collate or code_of(collate) is None or batch is None:
        return None
    count = min(batch, len(dataset), _MOST)
    if count < _FEWEST:
        return None
    samples = []
    for number in range(count):
        seed_all(number)
        samples.append(copy.deepcopy(dataset[number]))
    try:
        whole = _made(collate, samples)
        if not _same(whole, _made(collate, samples)):
            return None
        read = _read(collate, samples, whole, until)
        if read is None:
            return None
        # in another order, samples that are chosen by what they are lie at other places
        moved = random.Random(0).sample(samples, count)
        if _read(collate, moved, _made(collate, moved), until) != read:
            return None
    except _Unknown:
        return None
    unread = next(number for number in range(count) if number not in read)
    path = next((p for p, part in whole.items() if isinstance(part, torch.Tensor)), None)
    line = None
    if path is not None:
        with contextlib.suppress(Exception):  # functions and objects of any kind
            line = line_of_part(collate, keys_of(f"batch{path}"))
    return UncollatedFacts(read=len(read), of=count, unread=unread, line=line)


def _read(
    collate: Callable[[list[Any]], Any], samples: list[Any], whole: dict[str, Any], until: float
) -> set[int] | None:
    """The places of the samples that come into the batch `whole`; None where that is not known, or
    where they are most of them."""
    given, count = [dict(_values(sample)) for sample in samples], len(samples)
    read: set[int] = set()
    for number in range(count):
        # another sample of the same batch, since others may not fit to it
        other = next((i for i in range(count) if not _same(given[i], given[number])), None)
        if other is None or time.monotonic() > until:
            return None
        if not _same(whole, _made(collate, _exchanged(samples, number, samples[other]))):
            read.add(number)
    return read if 0 < len(read) <= (1 - _UNREAD) * count else None


def _exchanged(samples: list[Any], number: int, other: Any) -> list[Any]:
    return [*samples[:number], other, *samples[number + 1 :]]


def _made(collate: Callable[[list[Any]], Any], samples: list[Any]) -> dict[str, Any]:
    seed_all(0)
    return dict(_values(collate(copy.deepcopy(samples))))


def _values(value: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Everything in a sample or a batch."""
    if isinstance(value, Mapping) and depth:
        for key, item in value.items():
            yield from _values(item, f"{path}[{key!r}]", depth - 1)
    elif isinstance(value, (list, tuple)) and depth:
        yield f"{path}.length", len(value)
        for number, item in enumerate(value):
            yield from _values(item, f"{path}[{number}]", depth - 1)
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield path, value
    elif (tensor := as_tensor(value)) is not None:
        yield path, tensor
    elif not (isinstance(value, torch.Tensor) and not value.numel()):
        raise _Unknown


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        same(value, other[path])
        if isinstance(value, torch.Tensor) and isinstance(other[path], torch.Tensor)
        else type(value) is type(other[path]) and value == other[path]
        for path, value in one.items()
    )
