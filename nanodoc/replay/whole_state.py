"""Everything that a step of a script may change besides tensors, as far as it can be reached: for
the one time that a step is run again while the script goes on."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from nanodoc.recipe.variables import globals_of
from nanodoc.replay.objects import (
    CONTAINERS,
    LONGEST,
    QUEUES,
    attributes,
    contents,
    is_stateful,
)
from nanodoc.replay.random_sources import Restore, copy_of_source
from nanodoc.trace.files import USER, frame_kind

_MOST = 50_000  # objects
_LONGEST = 10_000_000  # entries of a container
_LARGEST = 1 << 30  # bytes of an array
_PLAIN = (int, float, complex, str, bytes, type(None), types.ModuleType, torch.Tensor)
_ARRAYS = ("numpy.ndarray", "numpy.memmap", "array.array", "builtins.bytearray")
_BAGS = ("argparse.Namespace", "types.SimpleNamespace")
# what they do cannot be taken back, nor kept from being done
_LASTING = {
    "_blake2.blake2b",  # digests and compressors have methods that go on, and none that go back
    "_blake2.blake2s",
    "_bz2.BZ2Compressor",
    "_hashlib.HASH",
    "_hashlib.HASHXOF",
    "_hashlib.HMAC",
    "_lzma.LZMACompressor",
    "_queue.SimpleQueue",
    "sqlite3.Connection",
    "sqlite3.Cursor",
    "subprocess.Popen",
    "zlib.Compress",
    "zlib.Decompress",
}
# a step that is run again is kept from using them
_KEPT_FROM = {"multiprocessing.connection.Connection", "socket.socket"}


class WholeState:
    """The state of `values`, and of all that they refer to. `unsafe` names what cannot be put back;
    None where nothing of that kind was met."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._restores: list[Restore] = []
        self._seen: set[int] = set()
        self._held: list[Any] = []  # so that no identity is used twice
        self.unsafe: str | None = None
        self._waiting = list(values)
        environment = dict(os.environ)
        self._restores.append(lambda: _restore_environment(environment))
        while self._waiting and self.unsafe is None:
            value = self._waiting.pop()
            if id(value) in self._seen or isinstance(value, _PLAIN):
                continue
            self._seen.add(id(value))
            self._held.append(value)
            if len(self._seen) > _MOST:
                self.unsafe = f"more than {_MOST} objects"
            # an object may answer any question by an exception
            with contextlib.suppress(Exception):
                self._look(value)

    def restore(self) -> None:
        """Puts all of it back."""
        for restore in self._restores:
            with contextlib.suppress(Exception):
                restore()

    def _look(self, value: Any) -> None:  # noqa: C901 - one branch a kind of object
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        source = copy_of_source(value)
        if source is not None:
            self._restores.append(source(value))
        elif kind in _KEPT_FROM or isinstance(value, QUEUES):
            return
        elif kind in _LASTING or kind.startswith("multiprocessing.sharedctypes."):
            self.unsafe = f"a {type(value).__name__}"
        elif isinstance(value, CONTAINERS):
            self._container(value)
        elif isinstance(value, tuple):
            self._waiting += value
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._waiting += (value.__self__, value.__func__)
        elif isinstance(value, type):
            if _is_of_user(value.__module__):
                self._class(value)
        elif kind in _ARRAYS:
            self._array(value)
        elif isinstance(value, io.IOBase):
            self._file(value)
        elif isinstance(value, torch.nn.Module):
            self._waiting += vars(value).values()
            self._waiting.append(type(value))
        elif is_stateful(value, libraries=True) or kind in _BAGS or isinstance(value, LRScheduler):
            self._restores.append(attributes(value))
            self._waiting += vars(value).values()
            self._waiting.append(type(value))
            self._slots(value)
        elif _is_of_user(type(value).__module__):
            self._slots(value)

    def _container(self, value: Any) -> None:
        if len(value) > _LONGEST:
            self.unsafe = f"a {type(value).__name__} of {len(value)} entries, too many to copy"
            return
        self._restores.append(contents(value))
        if len(value) <= LONGEST:
            self._waiting += dict.values(value) if isinstance(value, dict) else value

    def _function(self, function: types.FunctionType) -> None:
        """Its attributes and defaults, the variables that it closes over, and its globals."""
        if frame_kind(function.__code__.co_filename) != USER:
            return
        if vars(function):
            self._restores.append(attributes(function))
            self._waiting += vars(function).values()
        self._waiting += function.__defaults__ or ()
        self._waiting += (function.__kwdefaults__ or {}).values()
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                self._restores.append(_cell(cell, cell.cell_contents))
                self._waiting.append(cell.cell_contents)
        namespace = function.__globals__
        for name in globals_of(function.__code__):
            if name in namespace:
                self._restores.append(_name(namespace, name, namespace[name]))
                self._waiting.append(namespace[name])

    def _class(self, kind: type) -> None:
        own = {
            name: value
            for name, value in vars(kind).items()
            if not name.startswith("__") and not hasattr(type(value), "__get__")
        }
        for name, value in own.items():
            self._restores.append(_attribute(kind, name, value))
            self._waiting.append(value)
        self._waiting += [v for v in vars(kind).values() if isinstance(v, types.FunctionType)]

    def _slots(self, value: Any) -> None:
        for kind in type(value).__mro__:
            slots = vars(kind).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name.startswith("__") or not hasattr(value, name):
                    continue
                held = getattr(value, name)
                self._restores.append(_attribute(value, name, held))
                self._waiting.append(held)

    def _array(self, value: Any) -> None:
        size = getattr(value, "nbytes", None) or len(value)
        if size > _LARGEST:
            self.unsafe = f"a {type(value).__name__} of {size} bytes, too many to copy"
            return
        before = value[:].copy() if hasattr(value, "nbytes") else value[:]

        def restore() -> None:
            value[:] = before

        self._restores.append(restore)

    def _file(self, file: Any) -> None:
        """What is written behind its end is cut off again."""
        if file.closed or not file.writable() or file in (sys.__stdout__, sys.__stderr__):
            return
        if not file.seekable():
            if not file.isatty() and file not in (sys.stdout, sys.stderr):
                self.unsafe = "an output stream that can't be rewound"
            return
        file.flush()
        place = file.tell()

        def restore() -> None:
            file.flush()
            file.seek(place)
            file.truncate()

        self._restores.append(restore)


def _restore_environment(before: dict[str, str]) -> None:
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


def _is_of_user(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and frame_kind(file) == USER


def _cell(cell: types.CellType, value: Any) -> Restore:
    def restore() -> None:
        if cell.cell_contents is not value:
            cell.cell_contents = value

    return restore


def _name(namespace: dict[str, Any], name: str, value: Any) -> Restore:
    def restore() -> None:
        if namespace.get(name) is not value:
            namespace[name] = value

    return restore


def _attribute(owner: Any, name: str, value: Any) -> Callable[[], None]:
    def restore() -> None:
        if getattr(owner, name, None) is not value:
            setattr(owner, name, value)

    return restore
