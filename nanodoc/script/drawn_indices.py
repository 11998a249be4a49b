"""Which samples of the data set a batch was made of: what the loader's sampler gave is kept beside
the tensors of the loader's last batches, which are not held."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from functools import cache
from types import CodeType
from typing import Any

import torch

from nanodoc.tensors.nested import batch_size, tensors_of
from nanodoc.tensors.samples import owners_of

_MOST_KEPT = 8  # batches: several loaders side by side, and a batch that is drawn ahead
_REORDERING = {"sort", "sorted", "argsort", "shuffle", "randperm", "permutation", "sample"}


class DrawnIndices:
    """The indices of the batches that loaders yielded last."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], list[int] | None, list[int]]] = {}
        """By the identity of a batch's tensor: that tensor, the indices of its batch, and the
        identities of all tensors of that batch."""
        self._kept: deque[list[int]] = deque()
        """The identities of each batch's tensors, the oldest batch first."""
        self._last: tuple[Any, list[int] | None] | None = None

    def drawn(self, batch: Any, indices: list[int] | None, collate: Any) -> None:
        """A loader has yielded a batch. Its indices are not those of its samples where `collate`
        left some out, or gave them another order."""
        tensors = tensors_of(batch)
        if indices is not None and (
            not _has_rows(tensors, len(indices), batch) or _reorders(_code_of(collate))
        ):
            indices = None
        self._last = batch, indices
        keys = [id(tensor) for tensor in tensors]
        for key, tensor in zip(keys, tensors, strict=True):
            self._known[key] = weakref.ref(tensor), indices, keys
        self._kept.append(keys)
        if len(self._kept) > _MOST_KEPT:
            oldest = self._kept.popleft()
            for key in oldest:
                if key in self._known and self._known[key][2] is oldest:  # not drawn again since
                    del self._known[key]

    def of(self, value: Any) -> list[int] | None:
        """The data set's indices of the samples, where all tensors of `value` that come from
        loaders come from one batch; None where they come from several, or from none."""
        if self._last is None:
            return None
        if value is self._last[0]:
            return self._last[1]
        first: list[int] | None = None
        for tensor in tensors_of(value):
            held = self._known.get(id(tensor))
            if held is None or held[0]() is not tensor:
                continue
            if held[1] is None or (first is not None and held[1] != first):
                return None
            first = held[1]
        return first


def _has_rows(tensors: Sequence[torch.Tensor], count: int, batch: Any) -> bool:
    """The batch has so many samples, or none that can be counted; or they are packed."""
    if all(tensor.dim() and len(tensor) == count for tensor in tensors):
        return True
    if batch_size(batch) in (None, count):
        return True
    sizes = {len(tensor) for tensor in tensors if tensor.dim()}
    return any(next(owners_of(batch, size, count), None) is not None for size in sizes)


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
