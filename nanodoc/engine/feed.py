"""Batches of the user's data, pass after pass, with the samples' indices in the data set where they can be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from nanodoc.engine.batches import leading_size
from nanodoc.errors import UsageError, UserCodeError


class Feed:
    """Yields micro-batch after micro-batch; `passes` counts the finished passes over the data."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._iterator: Iterator[Any] | None = None
        self._queue: deque[list[int] | None] | None = None
        self._yielded = 0
        self._seen = 0  # samples of this pass
        # what comes in its own order, one batch after the other, is numbered by counting
        in_order = isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset) and data.num_workers == 0
        self._counts = in_order or not isinstance(data, DataLoader)
        self.passes = 0

    def next(self) -> tuple[Any, list[int] | None] | None:
        """The next batch and its indices; None when the data is a one-shot iterator that has ended.

        Raises `UsageError` if the data never yields anything, `UserCodeError` for an exception of the loader.
        """
        for _ in range(2):
            try:
                if self._iterator is None:
                    self._iterator = iter(self._data)
                    self._queue = _watch_indices(self._data, self._iterator)
                batch = next(self._iterator)
            except StopIteration:
                self._iterator = None
                if self._yielded == 0:
                    if self.passes == 0:
                        raise UsageError("the data is empty: it yields no batch") from None
                    return None
                self.passes += 1
                self._yielded = self._seen = 0
                continue
            except Exception as error:
                raise UserCodeError(error, "data") from error
            self._yielded += 1
            first, self._seen = self._seen, self._seen + leading_size(batch)
            if self._counts:
                return batch, list(range(first, self._seen))
            return batch, self._queue.popleft() if self._queue else None
        return None


def _watch_indices(data: Any, iterator: Any) -> deque[list[int] | None] | None:
    """A queue that receives the indices of each batch as the loader draws them; None where it can't be told."""
    if not isinstance(data, DataLoader) or isinstance(data.dataset, IterableDataset) or not getattr(data, "in_order", True):
        return None
    draw = getattr(iterator, "_next_index", None)
    if draw is None:
        return None
    queue: deque[list[int] | None] = deque()
    # worker iterators draw ahead while they are made: those batches come first, their indices unknown to us
    for _ in range(getattr(iterator, "_send_idx", 0)):
        queue.append(None)

    def watched() -> Any:
        index = draw()
        queue.append([int(i) for i in index] if isinstance(index, (list, tuple)) else [int(index)] if isinstance(index, int) else None)
        return index

    iterator._next_index = watched
    return queue


class OneBatch:
    """Data whose first batch comes again and again."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._batch: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        if not self._batch:
            for batch in self._data:
                self._batch.append(batch)
                break
        yield from self._batch
