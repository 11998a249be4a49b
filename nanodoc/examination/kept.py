"""What a data set keeps: the objects that can be reached from it by attributes, lists and
dictionaries."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from nanodoc.examination.sample import as_tensor

_LARGEST = 1 << 28  # bytes of all that is compared
_MOST_MET = 512  # objects
_BETWEEN_PROCESSES = ("multiprocessing", "ctypes", "_ctypes", "mmap", "sqlite3", "lmdb", "h5py")
_DEPTH = 4


def shares_memory(dataset: Any) -> bool:
    """Some of what a data set keeps is shared between processes, or lies behind a connection that
    must not be used in two of them."""
    for _, value, _ in walked(dataset, 0):
        if type(value).__module__.partition(".")[0] in _BETWEEN_PROCESSES:
            return True
        if isinstance(value, torch.Tensor) and (value.is_shared() or value.device.type != "cpu"):
            return True
        base = value.base if type(value).__module__ == "numpy" else None
        while type(base).__module__.partition(".")[0] == "numpy":
            base = getattr(base, "base", None)
        if type(value).__name__ == "memmap" or type(base).__name__ == "mmap":
            return True
        if type(base).__module__.partition(".")[0] in _BETWEEN_PROCESSES:
            return True
    return False


def held_arrays(dataset: Any, index: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The arrays that a data set keeps for this sample, or for all."""
    for name, tensor, _ in _arrays(dataset, index):
        yield name, tensor


def held_rows(dataset: Any, index: int, dims: tuple[int, int]) -> Iterator[torch.Tensor]:
    """The arrays of as many dimensions that may be of this sample; of those that hold all samples,
    its row."""
    for _, held, number in _arrays(dataset, index):
        if held.dim() in dims:
            yield held
        if held.dim() - 1 in dims and number < len(held):
            yield held[number]


def _arrays(dataset: Any, index: int) -> Iterator[tuple[str, torch.Tensor, int]]:
    left = _LARGEST
    for name, value, number in walked(dataset, index):
        tensor = _over_memory(value)
        if tensor is not None:
            left -= tensor.numel() * tensor.element_size()
            if left < 0:
                return
            yield name or "the data set", tensor, number


def walked(dataset: Any, index: int) -> Iterator[tuple[str, Any, int]]:
    """(how it is named, what it is, the number of the sample in it) of what a data set keeps."""
    seen: dict[int, Any] = {}
    waiting: list[tuple[str, Any, int, int]] = [("", dataset, index, _DEPTH)]
    while waiting and len(seen) < _MOST_MET:
        name, value, number, depth = waiting.pop(0)
        if id(value) in seen:
            continue
        seen[id(value)] = value  # held, so that its identity stays its own
        yield name, value, number
        if depth and not isinstance(value, torch.Tensor):
            waiting += [
                (f"{name}{key}", inner, other, depth - 1)
                for key, inner, other in _inside(value, number)
            ]


def _over_memory(value: Any) -> torch.Tensor | None:
    """Over the value's own memory, so that a change shows."""
    if isinstance(value, torch.Tensor):
        return as_tensor(value)
    flags = getattr(value, "flags", None)
    if type(value).__module__ == "numpy" and getattr(flags, "writeable", False):
        return as_tensor(value) if all(step >= 0 for step in value.strides) else None
    return None


def _inside(value: Any, index: int) -> Iterator[tuple[str, Any, int]]:
    """(how it is named, what it is, the number of the sample in it)"""
    if isinstance(value, (list, tuple)):
        for number in dict.fromkeys((index, *range(min(len(value), 8)))):
            if number < len(value):
                yield f"[{number}]", value[number], index
    elif isinstance(value, dict):
        keys = [key for key in (index, str(index)) if key in value]
        for key in dict.fromkeys([*keys, *itertools.islice(value, 8)]):
            yield f"[{key!r}]", value[key], index
    elif hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        if type(value).__module__.partition(".")[0] in ("numpy", "builtins"):
            return
        if isinstance(value, torch.utils.data.Subset):
            with contextlib.suppress(Exception):  # the user's own sequence
                index = int(value.indices[index])
        for name, inner in list(vars(value).items()):
            yield f".{name}", inner, index
