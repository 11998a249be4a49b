"""Side effects of an iteration that is run again: nothing is printed, logged, written or waited for
a second time. Other threads of the script are left alone."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from nanodoc.instrument.frames import caller
from nanodoc.instrument.taps import at, listening
from nanodoc.script.outside import StopReplay, called_by_loader
from nanodoc.trace.files import USER, frame_kind

# module, classes or functions of it, and which of their methods: they show or send something
_SHOWING = (
    (
        "tqdm.std",
        "tqdm",
        ("update", "refresh", "display", "set_postfix", "set_description", "close"),
    ),
    ("torch.utils.tensorboard.writer", "SummaryWriter", None),
    ("wandb", "", ("log",)),
)
OF_FILES = (
    *("remove", "unlink", "rename", "replace", "rmdir", "truncate"),
    *("mkdir", "makedirs", "link", "symlink", "chmod", "utime"),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# (module, class, methods): they speak to another process
_SPEAKING = (
    (
        "multiprocessing.connection",
        "_ConnectionBase",
        ("send", "send_bytes", "recv", "recv_bytes", "recv_bytes_into", "poll"),
    ),
    (
        "socket",
        "socket",
        ("connect", "send", "sendall", "sendto", "recv", "recv_into", "recvfrom", "accept"),
    ),
    ("multiprocessing.process", "BaseProcess", ("start",)),
    ("concurrent.futures.thread", "ThreadPoolExecutor", ("submit",)),
    ("concurrent.futures.process", "ProcessPoolExecutor", ("submit",)),
    ("os", "", ("fork",)),
)
# of the script's own calls: what they wait for may never come, or comes from another thread
_WAITING = (
    ("threading", "Semaphore", "acquire"),
    ("threading", "Event", "wait"),
    ("threading", "Condition", "wait"),
    ("threading", "Barrier", "wait"),
    ("multiprocessing.synchronize", "Event", "wait"),
    ("multiprocessing.synchronize", "Condition", "wait"),
)

_TASKS = ("create_task", "call_soon", "call_at", "run_in_executor")  # of an event loop

_aloud = 0
"""How often what is muted now is aloud again."""

Replaced = tuple[Any, str, Callable[[Any], Any]]
"""(owner, name, what makes the replacement of the original)"""


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """What runs inside, in this thread, leaves nothing behind outside of this process."""
    mine, said = threading.get_ident(), io.StringIO()
    with (
        replaced(_silenced()),
        _descriptors_closed(),
        _Stream.of_thread(mine, "stdout", said),
        _Stream.of_thread(mine, "stderr", said),
    ):
        yield


@contextlib.contextmanager
def aloud() -> Iterator[None]:
    """Inside, what is muted around it is not: files of nanodoc's own are written. What is muted
    inside of it is."""
    global _aloud
    _aloud += 1
    try:
        yield
    finally:
        _aloud -= 1


@contextlib.contextmanager
def no_new_tasks() -> Iterator[None]:
    """What runs inside, in this thread, gives nothing to the event loop. Raises `StopReplay` where
    that cannot be seen to: in a loop that is written in C."""
    loop = asyncio._get_running_loop()
    tasks = [(type(loop), name, ending) for name in _TASKS] if loop is not None else []
    try:
        around = contextlib.ExitStack()
        around.enter_context(replaced(tasks))
    except TypeError:
        raise StopReplay("its event loop cannot be held") from None
    with around:
        yield


@contextlib.contextmanager
def replaced(those: Iterable[Replaced], *, everywhere: bool = False) -> Iterator[None]:
    """Functions and methods are others inside, in this thread or in all."""
    mine, inside, level = None if everywhere else threading.get_ident(), True, _aloud

    def replacing(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def listener(original: Any) -> Any:
            instead = make(original)

            def called(*args: Any, **kwargs: Any) -> Any:
                # an event loop may keep a method, and call it later
                quiet = inside and _aloud <= level and mine in (None, threading.get_ident())
                return (instead if quiet else original)(*args, **kwargs)

            return called

        return listener

    try:
        with listening(*((at(owner, name), replacing(make)) for owner, name, make in those)):
            yield
    finally:
        inside = False


def _silenced() -> Iterator[Replaced]:
    yield from showing()
    for module, owner, methods in _SPEAKING:
        loaded = sys.modules.get(module)
        target = getattr(loaded, owner, None) if owner else loaded
        for name in methods if target is not None else ():
            yield target, name, ending
    for module, owner, name in _WAITING:
        target = getattr(sys.modules.get(module), owner, None)
        if target is not None:
            yield target, name, _waiting
    for target, name in ((torch, "save"), (time, "sleep"), (logging.Logger, "handle")):
        yield target, name, lambda original: _nothing
    for name in OF_FILES:
        yield os, name, lambda original: _nothing
    yield builtins, "open", opening
    yield io, "open", opening
    archives = sys.modules.get("tarfile")
    if hasattr(archives, "bltn_open"):  # its own name for open()
        yield archives, "bltn_open", opening
    yield os, "open", opening_by_number
    yield os, "write", lambda original: lambda descriptor, data: len(data)
    yield os, "system", lambda original: _refused
    yield subprocess.Popen, "__init__", lambda original: _refused


def showing() -> Iterator[Replaced]:
    """What libraries that are loaded by now show or send."""
    for module, owner, names in _SHOWING:
        loaded = sys.modules.get(module)
        target = getattr(loaded, owner, None) if owner else loaded
        for name in names or [n for n in dir(target) if n.startswith("add_") or n == "flush"]:
            if target is not None and hasattr(target, name):
                yield target, name, lambda original: _nothing


def anywhere(path: Any) -> bool:
    """It is the path of a file, and not one that is open already."""
    return isinstance(path, (str, bytes, os.PathLike))


def opening(original: Any, refused: Callable[[Any], bool] = anywhere) -> Any:
    """In the place of `open`: what is written to a `refused` path goes nowhere."""

    def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if any(letter in mode for letter in "wax+") and refused(file):
            return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)
        return original(file, mode, *args, **kwargs)

    return open_


def opening_by_number(original: Any, refused: Callable[[Any], bool] = anywhere) -> Any:
    """In the place of `os.open`, likewise."""

    def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & _WRITING and refused(path):
            return int(original(os.devnull, os.O_RDWR))
        return int(original(path, flags, *args, **kwargs))

    return open_


class _Stream:
    """stdout or stderr, for one thread somewhere else."""

    def __init__(self, thread: int, own: Any, instead: Any) -> None:
        self._thread, self._own, self._instead = thread, own, instead

    def __getattr__(self, name: str) -> Any:
        mine = threading.get_ident() == self._thread
        return getattr(self._instead if mine else self._own, name)

    @staticmethod
    @contextlib.contextmanager
    def of_thread(thread: int, name: str, instead: Any) -> Iterator[None]:
        """`sys.<name>` of that thread goes to `instead`."""
        own = getattr(sys, name)
        setattr(sys, name, _Stream(thread, own, instead))
        try:
            yield
        finally:
            setattr(sys, name, own)


@contextlib.contextmanager
def _descriptors_closed() -> Iterator[None]:
    """What is written to stdout and stderr by other names of them goes nowhere; not where another
    thread may be writing, too."""
    if threading.active_count() > 1:
        yield
        return
    kept: list[tuple[int, int]] = []
    _flush()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # it is closed
            kept.append((descriptor, os.dup(descriptor)))
    with _to_nowhere() as nowhere:
        try:
            for descriptor, _ in kept:
                os.dup2(nowhere, descriptor)
            yield
        finally:
            _flush()
            for descriptor, copy in kept:
                os.dup2(copy, descriptor)
                os.close(copy)


_open = os.open  # before anything replaces it


@contextlib.contextmanager
def _to_nowhere() -> Iterator[int]:
    """A descriptor that leads nowhere."""
    nowhere = _open(os.devnull, os.O_RDWR)
    try:
        yield nowhere
    finally:
        os.close(nowhere)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            if stream is not None:
                stream.flush()


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def ending(original: Any) -> Any:
    """In the place of what speaks to another process, but for a loader and its workers: raises
    `StopReplay`."""
    process = os.getpid()

    def called(*args: Any, **kwargs: Any) -> Any:
        # a loader speaks to its workers; those that were forked meanwhile speak to their loader
        if os.getpid() != process or called_by_loader(sys._getframe(1)) or _wakes_itself():
            return original(*args, **kwargs)
        raise StopReplay("it speaks to another process, or starts a task")

    return called


def _wakes_itself() -> bool:
    """An event loop, when an asynchronous generator that nobody needs any more is collected."""
    return "_write_to_self" in (caller(1).f_code.co_name, caller(2).f_code.co_name)


def _waiting(original: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        # behind the frame of `replaced`
        if frame_kind(caller(1).f_code.co_filename) == USER:
            raise StopReplay("it waits for another thread")
        return original(*args, **kwargs)

    return called


def _refused(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("not allowed in a step that is re-run")
