"""Containers and plain objects: shallow copies of them, and putting them back. Tensors and modules
are left to others."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing.queues
import queue
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nanodoc.replay.random_sources import Restore, copy_of_source
from nanodoc.trace.files import LIBRARY, USER, frame_kind

CONTAINERS = (list, deque, dict, set)
PLAIN = (int, float, complex, str, bytes, type(None), types.ModuleType, type)
LONGEST = 1000  # entries of a container; a longer one is data, not state
_DATA = (torch.utils.data.DataLoader, torch.utils.data.Dataset)
QUEUES: tuple[Any, ...] = (
    asyncio.Queue,
    queue.Queue,
    multiprocessing.queues.Queue,
    multiprocessing.queues.JoinableQueue,
    multiprocessing.queues.SimpleQueue,
)
"""What they hold is other threads', processes' and tasks', too."""
SUSPENDED = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
"""They are not held: what they do at their end is to happen when the training lets go of them."""
_FUNCTIONS = (types.FunctionType, types.MethodType)
_NEVER_STATEFUL = (type, types.ModuleType, *_DATA, *_FUNCTIONS, *QUEUES)
HOLDS_NOTHING = frozenset(
    {*PLAIN, bool, torch.Tensor, types.FunctionType, types.BuiltinFunctionType}
)
"""The very types of which there is nothing to be put back here."""
_NOT_LOOKED_INTO = (*PLAIN, torch.Tensor, torch.nn.Module)
_DEEPEST = 7  # objects inside objects
_MOST = 5000  # objects


def is_stateful(value: Any, *, libraries: bool = False) -> bool:
    """An object of a class of the user's own, which may count or remember; with `libraries`, of an
    installed package's other than torch, too."""
    if isinstance(value, _NEVER_STATEFUL):
        return False
    try:
        if not hasattr(value, "__dict__"):
            return False
    except Exception:  # a proxy of nothing that is there yet
        return False
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    kinds = (USER, LIBRARY) if libraries else (USER,)
    return file is not None and frame_kind(file) in kinds


def attributes(value: Any) -> Restore:
    """What puts the attributes of an object back. Only those that changed are written: another
    thread may write to the others."""
    return _attributes(value, dict(vars(value)))


def _attributes(value: Any, before: dict[str, Any]) -> Restore:
    def restore() -> None:
        held = vars(value)
        for name in [name for name in held if name not in before]:
            del held[name]
        for name, kept in before.items():
            if name not in held or held[name] is not kept:
                held[name] = kept

    return restore


def contents(value: Any) -> Restore:
    """What puts the contents of a container back, or of a class derived from one, whose own methods
    may do anything."""
    return _contents(value, _copy(value))


def _contents(value: Any, before: Any) -> Restore:
    kind = _kind(value)

    def restore() -> None:
        if _same(_copy(value), before):
            return
        if isinstance(value, OrderedDict):  # under dict's own methods its order goes to pieces
            OrderedDict.clear(value)
            for key, item in before.items():
                OrderedDict.__setitem__(value, key, item)
            return
        kind.clear(value)
        put = kind.update if kind in (dict, set) else kind.extend
        put(value, before)

    return restore


class PlainState:
    """The containers and objects among `values`, and inside them, as they are now. With `known`
    only those that `values` hold directly, and the objects that are known to change."""

    def __init__(self, values: Iterable[Any], known: Sequence[Any] | None = None) -> None:
        self._kept: list[tuple[Any, Any, Restore]] = []
        self._seen: set[int] = set()
        self._sources: list[tuple[Any, Restore]] = []
        for value in known or ():
            self._visit(value, _DEEPEST)
        for value in values:
            self._visit(value, 0 if known is None else _DEEPEST)

    def restore(self) -> None:
        """Puts all of it back."""
        for restore in [*(r for _, _, r in self._kept), *(r for _, r in self._sources)]:
            with contextlib.suppress(Exception):
                restore()

    def changed(self) -> list[Any]:
        """Those that are not as they were, and all sources of random numbers."""
        kept = [value for value, before, _ in self._kept if not _same(_copy(value), before)]
        # a source of random numbers may be drawn from in any step
        return [*kept, *(source for source, _ in self._sources)]

    def _visit(self, value: Any, depth: int) -> None:
        # an object may answer any question by an exception; suppress() takes its time
        try:  # noqa: SIM105
            self._look(value, depth)
        except Exception:
            pass

    def _look(self, value: Any, depth: int) -> None:
        if isinstance(value, _NOT_LOOKED_INTO) or id(value) in self._seen:
            return
        if depth > _DEEPEST or len(self._seen) > _MOST:
            return
        self._seen.add(id(value))
        source = copy_of_source(value)
        if source is not None:
            self._sources.append((value, source(value)))
            return
        if isinstance(value, CONTAINERS):
            if len(value) > LONGEST:
                return
            before = _copy(value)
            self._kept.append((value, before, _contents(value, before)))
            inside = list(dict.values(value) if isinstance(value, dict) else value)
        elif is_stateful(value, libraries=True) or isinstance(value, LRScheduler):
            before = dict(vars(value))
            self._kept.append((value, before, _attributes(value, before)))
            inside = list(vars(value).values())
        else:
            return
        if depth < _DEEPEST:
            for inner in inside:
                self._visit(inner, depth + 1)


def _kind(value: Any) -> Any:
    return next(kind for kind in CONTAINERS if isinstance(value, kind))


def _copy(value: Any) -> Any:
    if isinstance(value, OrderedDict):
        return dict(OrderedDict.items(value))
    return _kind(value).copy(value) if isinstance(value, CONTAINERS) else dict(vars(value))


def _same(a: Any, b: Any) -> bool:
    """Two copies hold the very same objects."""
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return all(key in b and b[key] is value for key, value in a.items())
    if isinstance(a, set):
        return {id(x) for x in a} == {id(x) for x in b}
    return all(x is y for x, y in zip(a, b, strict=True))
