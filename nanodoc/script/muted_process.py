"""A process that runs a training a second time, muted as a whole: all of its threads, and what they
do by native code. Python's own calls are told that they have succeeded, so that the training goes
on; the kernel refuses what gets past them (see `supervise.landlock`)."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nanodoc.script.muted import (
    OF_FILES,
    Replaced,
    ending,
    opening,
    opening_by_number,
    replaced,
    showing,
)
from nanodoc.script.outside import StopReplay
from nanodoc.trace.files import USER, frame_kind

_BECOMING = ("fork", "execv", "execve", "posix_spawn", "posix_spawnp")
"""What makes this process, or a copy of it, another one."""
_NOT_THERE = 127 << 8  # how os.system says so
_COMPILERS = ("torch._inductor.", "torch.utils.cpp_extension", "triton.")
_INTERNET = (socket.AF_INET, socket.AF_INET6)


@contextlib.contextmanager
def muted_process(own: str) -> Iterator[None]:
    """Inside, the process leaves nothing behind but in the folder `own`. What its threads say to
    each other they say, and its loaders have their workers. Standard input may not be read. What
    leads to other machines, and the descriptors 0 to 2, stay closed for good."""
    sys.addaudithook(_no_connection)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in range(3):  # reading the first of them raises
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    own = os.path.realpath(own)
    before = sys.stdin, tempfile.tempdir
    sys.stdin, tempfile.tempdir = _NoInput(), own
    try:
        with replaced((*showing(), *_silenced(own)), everywhere=True):
            yield
    finally:
        sys.stdin, tempfile.tempdir = before


def _silenced(own: str) -> Iterator[Replaced]:
    yield BaseProcess, "start", ending
    yield SharedMemory, "__init__", ending
    for name in _BECOMING:
        yield os, name, ending
    yield os, "kill", _signalling
    yield os, "killpg", _signalling
    pools = getattr(sys.modules.get("concurrent.futures.process"), "ProcessPoolExecutor", None)
    if pools is not None:
        yield pools, "submit", ending
    yield socket.socket, "connect", lambda original: _connecting(original, own)
    yield subprocess.Popen, "__init__", _starting
    yield os, "system", lambda original: lambda command: _NOT_THERE
    yield logging.Logger, "handle", lambda original: lambda logger, record: None
    yield torch, "save", lambda original: _saving(original, own)
    for name in OF_FILES:
        yield os, name, lambda original: _changing(original, own)
    refused = partial(_is_elsewhere, own=own)
    yield builtins, "open", lambda original: opening(original, refused)
    yield io, "open", lambda original: opening(original, refused)
    archives = sys.modules.get("tarfile")
    if hasattr(archives, "bltn_open"):  # its own name for open()
        yield archives, "bltn_open", lambda original: opening(original, refused)
    yield os, "open", lambda original: opening_by_number(original, refused)


def _is_elsewhere(path: Any, own: str, folder: int | None = None) -> bool:
    """It is the path of something that is not in the folder `own`. `folder`: the descriptor of the
    one that the path begins at."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    name = os.fsdecode(path)  # that of a socket may begin with a zero
    if folder is not None:
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return "\0" in name or not os.path.realpath(name).startswith(own + os.sep)


def _changing(original: Callable[..., Any], own: str) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        at = kwargs.get("dir_fd")  # as shutil.rmtree tells
        if any(_is_elsewhere(path, own, at) for path in (*args[:2], *kwargs.values())):
            return None
        return original(*args, **kwargs)

    return called


def _saving(original: Callable[..., None], own: str) -> Callable[..., None]:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not _is_elsewhere(f, own):
            original(obj, f, *args, **kwargs)

    return save


def _connecting(original: Callable[..., Any], own: str) -> Callable[..., Any]:
    """A loader's workers connect by a file in the process's own folder."""

    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in _INTERNET or _is_elsewhere(address, own):
            raise StopReplay("it speaks to another process")
        return original(self, address)

    return connect


def _starting(original: Callable[..., None]) -> Callable[..., None]:
    """Compilers are started by torch, and what they write goes into the process's own folder. The
    script is told what it would be on a machine that does not have the program."""

    def started(process: Any, args: Any, *rest: Any, **options: Any) -> None:
        if not _called_by_compiler(sys._getframe(1)):
            why = "no other program is started by a second run"
            raise FileNotFoundError(errno.ENOENT, why, str(args))
        original(process, args, *rest, **options)

    return started


def _signalling(original: Callable[..., None]) -> Callable[..., None]:
    """To itself and to its children it may send a signal: a loader ends its workers."""

    def called(number: int, sign: int) -> None:
        if number != os.getpid() and not _is_child(number):
            raise StopReplay("it sends a signal to another process")
        original(number, sign)

    return called


def _is_child(number: int) -> bool:
    try:
        told = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return True
    return int(told.rpartition(")")[2].split()[1]) == os.getpid()


def _called_by_compiler(frame: FrameType | None) -> bool:
    while frame is not None and frame_kind(frame.f_code.co_filename) != USER:
        if frame.f_globals.get("__name__", "").startswith(_COMPILERS):
            return True
        frame = frame.f_back
    return False


def _no_connection(event: str, arguments: tuple[Any, ...]) -> None:
    sends = event in ("socket.connect", "socket.sendto", "socket.sendmsg")
    if sends and arguments[0].family in _INTERNET:
        raise PermissionError("a training that is re-run may not connect to another machine")


class _NoInput(io.TextIOBase):
    """Standard input that the first run of a script has read: nobody can answer once more."""

    def readable(self) -> bool:
        """So that reading is tried."""
        return True

    def read(self, size: int | None = -1, /) -> str:
        """As every way of reading: raises `StopReplay`."""
        raise StopReplay("it reads standard input")

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # as TextIOWrapper's
        """As `read`; iterating comes here, too."""
        return self.read()

    @property
    def buffer(self) -> Any:
        """As `read`."""
        return self.read()
