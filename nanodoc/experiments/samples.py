"""Which samples of a batch make a step fail: the step is run again on parts of its batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from nanodoc.experiments.bisect import minimal_failing
from nanodoc.instrument.torch_private import BatchNormBase
from nanodoc.replay.step_state import StepState
from nanodoc.tensors.nested import (
    batch_size,
    is_list_of_samples,
    map_tensors,
    size_of_fields,
    tensor_leaves,
)

_MOST_RUNS = 80
_CONTROLS = 2
_WINDOWS = 8
_MOST_DRAWN = 512


def rows_of(batch: Any, size: int, rows: Sequence[int]) -> Any:
    """The batch with only these rows: of every tensor whose first dimension is `size`, and of every
    list of that many items."""
    if is_list_of_samples(batch) and len(batch) == size:
        return type(batch)(batch[row] for row in rows)
    in_fields = size_of_fields(batch) == size
    index = torch.tensor(list(rows), dtype=torch.long)

    def picked(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[index.to(tensor.device)] if _has_rows(tensor, size) else tensor

    def walk(value: Any, depth: int) -> Any:
        # a ragged field is a list with one item per sample; the batch itself is a list of fields
        listed = depth and type(value) in (list, tuple) and len(value) == size
        if listed and (in_fields or not any(_has_rows(item, size) for item in value)):
            return type(value)(value[row] for row in rows)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(walk(item, depth + 1) for item in value))
        if type(value) is dict:
            return {key: walk(item, depth + 1) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(walk(item, depth + 1) for item in value)
        return map_tensors(value, picked)

    return walk(batch, 0)


def _has_rows(item: Any, size: int) -> bool:
    return (
        isinstance(item, torch.Tensor)
        and item.dim() > 0
        and not item.is_nested
        and item.layout is torch.strided
        and item.shape[0] == size
    )


def indivisible(capsule: StepState) -> bool:
    """The step has several micro-batches, or its batch no dimension of samples: a sparse matrix is
    one graph's, whose rows are not apart."""
    if len(capsule.batches) != 1 or (batch_size(capsule.batches[0]) or 0) < 2:
        return True
    return any(t.layout is not torch.strided for _, t in tensor_leaves(capsule.batches[0]))


def shares_statistics(model: torch.nn.Module) -> bool:
    """BatchNorm takes its statistics from the whole batch: parts of it have other values."""
    return any(isinstance(m, BatchNormBase) and m.training for m in model.modules())


def part(capsule: StepState, rows: Sequence[int]) -> StepState:
    """The capsule with only these samples."""
    size = batch_size(capsule.batches[0]) or 0
    batches = [rows_of(capsule.batches[0], size, rows)]
    return replace(capsule, batches=batches)


class Parts:
    """Parts of the only batch of a capsule, by its rows."""

    def __init__(self, capsule: StepState) -> None:
        self.capsule = capsule
        self.size = batch_size(capsule.batches[0]) or 0

    def of(self, rows: Sequence[int]) -> StepState | None:
        """The capsule with only these samples; None where they can't be put together."""
        return part(self.capsule, rows)


class Redrawn(Parts):
    """Parts put together anew from the samples of the data set, where the batch has no row for each
    of them: graphs joined into one, labels put one behind the other."""

    def __init__(
        self, capsule: StepState, samples: Sequence[Any], collate: Callable[[list[Any]], Any]
    ) -> None:
        super().__init__(capsule)
        self.size = len(samples)
        self._samples = samples
        self._collate = collate

    def of(self, rows: Sequence[int]) -> StepState | None:
        try:
            return replace(
                self.capsule, batches=[self._collate([self._samples[row] for row in rows])]
            )
        except Exception:  # the user's collate function, which may want whole batches
            return None


def parts_of(
    capsule: StepState, data: Any, indices: Sequence[int] | None, deadline: float
) -> Parts | None:
    """How to take the batch apart; None where it can't be done. Samples are drawn again only where
    rows don't do, and used only where they make the same batch."""
    rows = None if indivisible(capsule) else Parts(capsule)
    if rows is not None and (indices is None or rows.size == len(indices)):
        return rows
    loads = (
        isinstance(data, DataLoader)
        and not isinstance(data.dataset, IterableDataset)
        and data.batch_sampler is not None
    )
    if (
        not loads
        or indices is None
        or not 1 < len(indices) <= _MOST_DRAWN
        or len(capsule.batches) != 1
    ):
        return rows
    try:
        again = Redrawn(
            capsule, [_drawn(data.dataset, index, deadline) for index in indices], data.collate_fn
        )
        whole = again.of(range(again.size))
        same = whole is not None and _same(whole.batches[0], capsule.batches[0])
    except Exception:  # the user's data set, asked at another time than theirs
        return rows
    return again if same else rows


def _drawn(dataset: Any, index: int, deadline: float) -> Any:
    if time.monotonic() > deadline:
        raise TimeoutError
    return dataset[index]


def _same(first: Any, other: Any) -> bool:
    mine, theirs = dict(tensor_leaves(first)), dict(tensor_leaves(other))
    return mine.keys() == theirs.keys() and all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.equal(a.nan_to_num(), b.to(a.device).nan_to_num())
        for a, b in ((mine[key], theirs[key]) for key in mine)
    )


class GuiltySamples:
    """The search for the samples that alone make the step fail. `fails` runs a capsule and says
    whether it fails as the whole batch does."""

    def __init__(self, parts: Parts, fails: Callable[[StepState], bool], deadline: float) -> None:
        self._parts = parts
        self._fails = fails
        self._deadline = deadline
        self._size = parts.size
        self.company = 0
        """With how many that pass a guilty sample was run, because it can't be run alone."""

    def confirm(self, suspects: Sequence[int]) -> bool:
        """These samples alone fail, and the others don't."""
        others = [row for row in range(self._size) if row not in set(suspects)]
        few = 0 < len(suspects) <= max(self._size // 2, 1)
        return (
            few
            and bool(others)
            and self._fail(suspects)
            and not self._fail(others)
            and self._others_bear_it(suspects)
        )

    def _others_bear_it(self, guilty: Sequence[int]) -> bool:
        """As many of the others pass alone: a batch this small is not what fails (a mean of no
        pairs, a variance of one)."""
        others = [row for row in range(self._size) if row not in set(guilty)]
        controls = [
            others[start : start + len(guilty)]
            for start in range(0, _CONTROLS * len(guilty), len(guilty))
        ]
        return not any(len(rows) == len(guilty) and self._fail(rows) for rows in controls)

    def search(self) -> tuple[int, ...]:
        """A minimal failing subset without which the rest is healthy, or () where the batch has
        none (or time ran out)."""
        found, proven = minimal_failing(range(self._size), self._fail, most=_MOST_RUNS)
        if proven and self._all_fail(len(found)):
            return ()
        guilty = self._told_apart(found)
        # one of several guilty samples was found: the rest still fails until each of them is out
        for _ in range(self._size):
            rest = [row for row in range(self._size) if row not in set(guilty)]
            if (
                not proven
                or not rest
                or time.monotonic() > self._deadline
                or len(guilty) > self._size // 2
            ):
                return ()
            if not self._fail(rest):
                return tuple(sorted(guilty)) if self._others_bear_it(guilty) else ()
            more, proven = minimal_failing(rest, self._fail, most=_MOST_RUNS)
            guilty += self._told_apart(more)
        return ()

    def _told_apart(self, found: Sequence[int]) -> list[int]:
        """Of samples that only fail together, those that each fail in the company of others that
        pass: a single one may not be run at all (BatchNorm needs two). All of them where none does.
        """
        size = max(len(found) - 1, 2)
        others = [row for row in range(self._size) if row not in set(found)]
        windows = [others[start : start + size] for start in range(0, len(others), size)][:_WINDOWS]
        company = (
            next((rows for rows in windows if len(rows) == size and not self._fail(rows)), None)
            if len(found) > 1
            else None
        )
        alone = [
            row for row in found if company is not None and self._fail(sorted([row, *company]))
        ]
        if alone:
            self.company = size
        return alone or list(found)

    def _all_fail(self, few: int) -> bool:
        """So many samples fail wherever they are taken from: it is not the samples."""
        starts = sorted({i * (self._size - few) // (_WINDOWS - 1) for i in range(_WINDOWS)})
        return len(starts) > 2 and all(self._fail(range(start, start + few)) for start in starts)

    def _fail(self, rows: Sequence[int]) -> bool:
        if time.monotonic() > self._deadline:
            return False
        capsule = self._parts.of(rows)
        return capsule is not None and self._fails(capsule)
