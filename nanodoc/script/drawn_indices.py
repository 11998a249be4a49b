"""Which samples of the data set a batch was made of: what the loader's sampler gave is kept beside
the tensors of the loader's last batches, which are not held."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from functools import cache
from types import CodeType
from typing import Any

from nanodoc.tensors.nested import batch_size, tensors_of

_MOST_KEPT = 8  # batches: several loaders side by side, and a batch that is drawn ahead
_REORDERING = {"sort", "sorted", "argsort", "shuffle", "randperm", "permutation", "sample"}


class DrawnIndices:
    """The indices of the batches that loaders yielded last."""

    def __init__(self) -> None:
        self._batches: deque[tuple[dict[int, weakref.ref[Any]], list[int] | None]] = deque(
            maxlen=_MOST_KEPT
        )
        self._last: tuple[Any, list[int] | None] | None = None

    def drawn(self, batch: Any, indices: list[int] | None, collate: Any) -> None:
        """A loader has yielded a batch. Its indices are not those of its samples where `collate`
        left some out, or gave them another order."""
        if indices is not None and (
            batch_size(batch) not in (None, len(indices)) or _reorders(_code_of(collate))
        ):
            indices = None
        self._last = batch, indices
        found = {id(tensor): weakref.ref(tensor) for tensor in tensors_of(batch)}
        self._batches.append((found, indices))

    def of(self, value: Any) -> list[int] | None:
        """The data set's indices of the samples, where all tensors of `value` that come from
        loaders come from one batch; None where they come from several, or from none."""
        if self._last is None:
            return None
        if value is self._last[0]:
            return self._last[1]
        tensors = tensors_of([value])
        known = [indices for found, indices in self._batches if _any_of(tensors, found)]
        return known[0] if known and all(one == known[0] for one in known) else None


def numbers_of(found: Any) -> list[int] | None:
    """What a sampler gives for one batch as numbers; None where it gives names or tuples instead,
    or a single sample."""
    if isinstance(found, (list, tuple)):
        numbers = list(found)
    elif getattr(found, "ndim", 0) == 1 and hasattr(found, "tolist"):
        numbers = found.tolist()  # a tensor, or an array
    else:
        return None
    try:
        return [int(number) for number in numbers]
    except (TypeError, ValueError):
        return None


def _any_of(tensors: Any, found: dict[int, weakref.ref[Any]]) -> bool:
    return any((ref := found.get(id(t))) is not None and ref() is t for t in tensors)


def _code_of(function: Any) -> CodeType | None:
    function = getattr(function, "func", function)  # of a partial
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        called = next(
            (vars(k)["__call__"] for k in type(function).mro() if "__call__" in vars(k)), 0
        )
        code = getattr(called, "__code__", None)
    return code if isinstance(code, CodeType) else None


@cache  # of a script's few collate functions
def _reorders(code: CodeType | None) -> bool:
    """A collate function's own source may give the samples another order."""
    return code is not None and any(
        not _REORDERING.isdisjoint(each.co_names) for each in _with_inner(code)
    )


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
