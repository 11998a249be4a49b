"""Batches of the user's data, pass after pass, with the samples' indices in the data set where they
can be told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from nanodoc.errors import UsageError, UserCodeError, is_users, said
from nanodoc.instrument.taps import LOADER_INDEX, listening
from nanodoc.instrument.torch_private import LoaderIterator
from nanodoc.tensors.nested import batch_size, leading_size


class BatchSource:
    """Yields micro-batch after micro-batch; `passes` counts the finished passes over the data."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._iterator: Iterator[Any] | None = None
        self._queue: deque[list[int] | None] | None = None
        self._yielded = 0
        self._seen = 0  # samples of this pass
        self.usual_size: int | None = None
        """Size of the first batch."""
        self._loads = isinstance(data, DataLoader)
        # what comes in its own order, one batch after the other, is numbered by counting
        self._counts = not self._loads or (
            isinstance(data.dataset, IterableDataset) and data.num_workers == 0
        )
        self.passes = 0
        self._unseen: list[Any] | None = None

    def next(self) -> tuple[Any, Sequence[int] | None] | None:
        """The next batch and its indices; None when the data is a one-shot iterator that has ended.

        Raises `UsageError` if the data never yields anything, `UserCodeError` for an exception of
        the loader.
        """
        for _ in range(2):
            try:
                if self._iterator is None:
                    data = self._data
                    self._iterator, self._queue = (
                        _begin(data) if self._loads else (iter(data), None)
                    )
                batch = next(self._iterator)
            except StopIteration:
                self._iterator = None
                if self._yielded == 0:
                    if self.passes == 0:
                        raise UsageError("the data is empty: it yields no batches") from None
                    return None
                self.passes += 1
                self._yielded = self._seen = 0
                continue
            except BaseException as error:
                if not is_users(error):
                    raise
                gone = _dead_worker(self._iterator) if not isinstance(error, RuntimeError) else None
                # a worker that ends by itself may show as any error of the pipe to it
                if gone is not None:
                    told = RuntimeError(f"DataLoader worker (pid(s) {gone}) exited unexpectedly")
                    told.add_note(f"seen as {type(error).__name__}: {said(error)}")
                    raise UserCodeError(told, "data") from error
                raise UserCodeError(error, "data") from error
            self._yielded += 1
            if self.usual_size is None and self.passes == 0 and self._yielded == 1:
                self.usual_size = batch_size(batch)
            if not self._counts:
                return batch, self._queue.popleft() if self._queue else None
            first = self._seen
            self._seen += leading_size(batch)
            return batch, range(first, self._seen)
        return None

    def step(self, count: int) -> tuple[list[Any] | None, Sequence[int] | None]:
        """The next `count` micro-batches, or as many as there are, and the indices of all their
        samples; None where the data has ended, or the indices can't be told. Raises as `next`."""
        if count == 1:
            drawn = self.next()
            return (None, None) if drawn is None else ([drawn[0]], drawn[1] or None)
        batches, parts = [], []
        for _ in range(count):
            drawn = self.next()
            if drawn is None:
                break
            batches.append(drawn[0])
            parts.append(drawn[1])
        return batches or None, _joined(parts)

    def unseen(self, count: int) -> list[Any]:
        """What the next step would have been given; nothing where that can't be had. For when the
        run is over."""
        if self._unseen is None:
            try:
                self._unseen = self.step(count)[0] or []
            except (UserCodeError, UsageError):
                self._unseen = []
        return self._unseen

    def close(self) -> None:
        """Lets go of the iterator, and with it of a loader's worker processes and their temporary
        folders."""
        iterator, self._iterator = self._iterator, None
        if hasattr(iterator, "_next_index"):
            vars(iterator).pop("_next_index", None)  # ours, and it refers to the iterator

    @property
    def failing(self) -> list[int] | None:
        """The indices of the batch that raised while it was loaded: the oldest that was drawn and
        has not come."""
        return self._queue[0] if self._queue else None


def _joined(parts: list[Sequence[int] | None]) -> Sequence[int] | None:
    """The indices of several batches as those of one."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    if all(isinstance(part, range) for part in known):  # counted, one batch after the other
        whole = range(known[0][0], known[-1][-1] + 1) if all(known) else range(0)
        if len(whole) == sum(map(len, known)):
            return whole or None
    return [index for part in known for index in part] or None


def _begin(data: Any) -> tuple[Iterator[Any], deque[list[int] | None] | None]:
    """An iterator over the data and a queue that receives the indices of each batch as the loader
    draws them; None where they can't be told. Workers draw ahead while the iterator is made, so
    that the queue must be there before."""
    ordered = (
        isinstance(data, DataLoader)
        and not isinstance(data.dataset, IterableDataset)
        and getattr(data, "in_order", True)
    )
    if not ordered:
        return iter(data), None
    queue: deque[list[int] | None] = deque()

    def indexing(draw: Callable[..., Any]) -> Callable[..., Any]:
        def watched(iterator: Any) -> Any:
            index = draw(iterator)
            if iterator._dataset is data.dataset:  # not a loader inside the data set
                queue.append(
                    [int(i) for i in index]
                    if isinstance(index, (list, tuple))
                    else [int(index)]
                    if isinstance(index, int)
                    else None
                )
            return index

        return watched

    # persistent workers keep last pass's iterator
    vars(getattr(data, "_iterator", None) or _Nothing()).pop("_next_index", None)
    with listening((LOADER_INDEX, indexing)):
        made = iter(data)
    if not isinstance(made, LoaderIterator):
        # a subclass whose __iter__ is a generator: it makes its own iterators when it is drawn from
        return made, None
    own = indexing(LoaderIterator._next_index)
    made._next_index = lambda: own(made)
    return made, queue


def _dead_worker(iterator: Any) -> int | None:
    """The number of a worker process that has ended with an error."""
    workers = getattr(iterator, "_workers", None) or []
    return next((worker.pid for worker in workers if worker.exitcode not in (None, 0)), None)


class _Nothing:
    """Has an empty `vars`."""


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
