"""Batches that hold the parts of their samples in different orders: the collate function is given
samples that were drawn one by one, and its rows are compared with theirs."""

from __future__ import annotations

import ast
import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from nanodoc.examination.sample import as_tensor, parts_of, same, seed_all
from nanodoc.facts.items import ReorderedBatch
from nanodoc.facts.source import SourceSpan
from nanodoc.tensors.nested import keys_of
from nanodoc.trace.files import line_span
from nanodoc.trace.parsed import definition_of, statements_of
from nanodoc.trace.returned import code_of, line_of_part

_SAMPLES = 16
_FEWEST = 6
_DEPTH = 3
_SORTING = ("sorted", "sort", "argsort")
_LARGEST = 1 << 20  # numbers of a part


def reordered_batch(
    dataset: Any, collate: Callable[[list[Any]], Any] | None, until: float
) -> ReorderedBatch | None:
    """None where all parts lie in one order, or where that can't be told by `until`. An order that
    is drawn at random is meant."""
    if collate is None or collate is default_collate or len(dataset) < _FEWEST:
        return None
    samples: list[Any] = []
    for number in range(min(len(dataset), _SAMPLES)):
        if time.monotonic() > until:
            return None
        seed_all(number)
        samples.append(dataset[number])
    fields: dict[str, list[torch.Tensor]] = {}
    for sample in samples:
        for name, value in _fields(sample):
            fields.setdefault(name, []).append(value.clone())
    whole = {name: values for name, values in fields.items() if len(values) == len(samples)}
    rows, again = _rows(collate, samples, 0), _rows(collate, samples, 1)
    if any(path not in again or not same(part, again[path]) for path, part in rows.items()):
        return None
    for name, values in whole.items():
        # beside the samples as they are, others in another order are strangers to pair them with
        if any(_in_order(part, values) for part in rows.values()):
            continue
        for path, part in rows.items():
            order = _order(part, values)
            if order is not None and not _is_turned(order):
                kept = _kept(rows, whole, order, path, name)
                if kept is not None:
                    return ReorderedBatch(
                        moved=path,
                        kept=kept[0],
                        rows=kept[1],
                        of=len(samples),
                        line=_line(collate, path),
                    )
    return None


def _rows(
    collate: Callable[[list[Any]], Any], samples: list[Any], seed: int
) -> dict[str, torch.Tensor]:
    """The parts of a batch that hold one row for each sample."""
    seed_all(seed)
    parts = parts_of(collate(copy.deepcopy(samples)))
    return {path: part for path, part in parts if part.dim() and len(part) == len(samples)}


def _fields(sample: Any, path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """The parts of one sample; numbers and lists of numbers among them."""
    if isinstance(sample, Mapping):
        for key, value in sample.items():
            yield from _fields(value, f"{path}[{key!r}]", depth - 1) if depth else ()
    elif isinstance(sample, (bool, int, float)):
        yield path, torch.tensor(sample)
    elif isinstance(sample, (list, tuple)):
        if sample and all(type(item) in (int, float) for item in sample) and path:
            yield path, torch.tensor(sample)
            return
        for number, value in enumerate(sample):
            yield from _fields(value, f"{path}[{number}]", depth - 1) if depth else ()
    elif (value := as_tensor(sample)) is not None and value.numel() <= _LARGEST:
        yield path, value


def _order(part: torch.Tensor, values: Sequence[torch.Tensor]) -> list[int] | None:
    """Which sample each row is; None where a row is none of them, or may be several."""
    found = []
    for row in part:
        alike = [number for number, value in enumerate(values) if _is(row, value)]
        if len(alike) != 1:
            return None
        found += alike
    return found if len(set(found)) == len(found) else None


def _is_turned(order: list[int]) -> bool:
    """The samples as they were given, or begun at another one, or backwards: who pairs each with a
    stranger does so."""
    count = len(order)
    step = 1 if (order[0] + 1) % count == order[1] else -1
    return all((a + step) % count == b for a, b in itertools.pairwise(order))


def _kept(
    rows: Mapping[str, torch.Tensor],
    fields: Mapping[str, Sequence[torch.Tensor]],
    order: Sequence[int],
    moved: str,
    field: str,
) -> tuple[str, int] | None:
    """(a part of the batch that lies in the order of the samples, how many of its rows belong to
    other samples in the order of the part that has moved)"""
    for path, part in rows.items():
        for name, values in fields.items():
            if path == moved or name == field:
                continue
            if not _in_order(part, values):
                continue
            apart = sum(not _is(part[at], values[number]) for at, number in enumerate(order))
            if apart:
                return path, apart
    return None


def _in_order(part: torch.Tensor, values: Sequence[torch.Tensor]) -> bool:
    return all(_is(row, value) for row, value in zip(part, values, strict=True))


def _is(row: torch.Tensor, value: torch.Tensor) -> bool:
    """The same numbers, perhaps with padding behind them."""
    if row.dim() != value.dim() or any(a < b for a, b in zip(row.shape, value.shape, strict=True)):
        return False
    inner = row[tuple(slice(size) for size in value.shape)]
    return bool((inner.double() == value.double()).all())


def _line(collate: Any, path: str) -> SourceSpan | None:
    """The only statement that sorts, else the one that makes the part."""
    with contextlib.suppress(Exception):  # functions and objects of any kind
        code = code_of(collate)
        function = definition_of(code) if code is not None else None
        if code is not None and function is not None:
            sorting = [node for node in statements_of(function.body) if _sorts(node)]
            if len(sorting) == 1:
                return line_span(code.co_filename, sorting[0].lineno, code.co_qualname)
        return line_of_part(collate, keys_of(f"batch{path}"))
    return None


def _sorts(statement: ast.stmt) -> bool:
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any((getattr(f, "attr", None) or getattr(f, "id", None)) in _SORTING for f in calls)
