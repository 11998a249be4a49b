"""Messages from the child to the parent: length-prefixed pickles of nanodoc's own plain
dataclasses, and of nothing else.

The child runs a stranger's code; what it sends is opened by an unpickler that knows no class but
these.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import os
import pickle
import signal
import struct
from collections.abc import Callable
from typing import Any

from nanodoc.heartbeat.last_words import CONCLUDE

_LENGTH = struct.Struct("<I")
_LARGEST = 256 * 1024 * 1024
CLOSED = "closed"
"""What the crumbs say of a channel that the training has closed."""
# What a configuration file may hold besides numbers and texts.
_PLAIN = {
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "complex"),
}
# what may raise, or write a message of its own, in the middle of one
_BLOCKED = {signal.SIGCHLD, signal.SIGINT} | ({CONCLUDE} if CONCLUDE is not None else set())


class WireError(Exception):
    """A message that nanodoc did not write."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        if module.split(".")[0] == "nanodoc":
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and dataclasses.is_dataclass(found):
                return found
        raise WireError(f"{module}.{name} is not part of a report")


def packed(kind: str, value: Any) -> bytes:
    """A message as bytes."""
    body = pickle.dumps((kind, value), protocol=4)
    return _LENGTH.pack(len(body)) + body


def opened(body: bytes) -> tuple[str, Any]:
    """(kind, value) of a message's bytes, without its length. Raises `WireError`."""
    try:
        kind, value = _Plain(io.BytesIO(body)).load()
    except WireError:
        raise
    except Exception as error:  # an unpickler given garbage raises whatever it likes
        raise WireError(f"{type(error).__name__}: {error}") from error
    return kind, value


class Sender:
    """Writes messages to a descriptor; once nobody reads them the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = _identity(descriptor)
        self.on_closed: Callable[[], None] = lambda: None
        """The descriptor is not ours any more: the training has closed it, and may have opened
        another file in its place."""

    def send(self, kind: str, value: Any = None) -> None:
        rest = memoryview(packed(kind, value))
        if _identity(self._descriptor) != self._identity:
            self.on_closed()
            return
        # a handler that raises must not cut a message in two
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:  # the parent is gone, and with it whoever asked
            os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _identity(descriptor: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Receiver:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[str, Any]]:
        """The messages that are complete now. Raises `WireError`."""
        self._buffer += data
        messages = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _LARGEST:
                raise WireError(f"a message of {length} bytes")
            if len(self._buffer) < _LENGTH.size + length:
                break
            messages.append(opened(bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])))
            del self._buffer[: _LENGTH.size + length]
        return messages
