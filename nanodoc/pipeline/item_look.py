"""Samples are drawn again in a process of their own, so that the data set of the training, its
generators and its files stay as they are."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import os
import pickle
import select
import signal
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from nanodoc.examination.drawn_items import look_at_items
from nanodoc.examination.kept import shares_memory
from nanodoc.examination.making import Source
from nanodoc.facts.items import ItemFacts
from nanodoc.script.muted import muted
from nanodoc.supervise.parent_death import end_with_parent

_LATER = 2.0  # seconds after which a draw that does not come back is ended


def item_facts(source: Source, seconds: float) -> ItemFacts | None:
    """Of the samples of a training's data set, within so many seconds; None where they can't be
    drawn in a process of their own, or drawing them fails."""
    if seconds < 0.1 or source.dataset is None or not _may_fork():
        return None
    reading, writing = os.pipe()
    # a signal that came at once would run the training's own handler, and the training twice
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    number = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12, of threads
            number = os.fork()
        if number == 0:
            _look(source, seconds, writing)
    except OSError:  # no more processes, or no memory
        os.close(reading)
        return None
    finally:
        os.close(writing)
        if number is None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)  # a Ctrl-C of meanwhile comes now
        told = _read(reading, time.monotonic() + seconds + _LATER)
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(number, 0)
    return ItemFacts(**dict(_found(told))) if told else None


def _found(told: bytes) -> Iterator[tuple[str, Any]]:
    """What our own process has told, up to where it was ended."""
    stream = io.BytesIO(told)
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        while True:
            yield pickle.load(stream)


def _may_fork() -> bool:
    """The training does not look after processes by itself: it would meet one that is not its
    own."""
    handler = signal.getsignal(signal.SIGCHLD) if sys.platform == "linux" else None
    own = callable(handler) and not str(getattr(handler, "__module__", "")).startswith("torch")
    return sys.platform == "linux" and not own


def _look(source: Source, seconds: float, writing: int) -> NoReturn:
    """In the new process, which ends here. All signals stay blocked in it but the one that ends it
    with its parent, which none can block."""
    try:
        end_with_parent()
        faulthandler.disable()  # a crash here is no crash of the training
        _let_go_of_descriptors(writing)
        torch.set_num_threads(1)  # the other threads were not forked
        with muted(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for found in () if shares_memory(source.dataset) else look_at_items(source, seconds):
                _write(writing, pickle.dumps(found))  # at once: what comes later may take too long
    except BaseException:  # whatever the data set raises, asked at another time than it expects
        pass
    finally:
        os._exit(0)


def _let_go_of_descriptors(writing: int) -> None:
    """A forked process shares open files: their positions move with its reads, and a connection is
    lost to both. Files that are only read are opened anew, at the same position. Connections,
    pipes, files that are written and what the training has yet to print go nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in [int(name) for name in os.listdir("/proc/self/fd")]:
        if number in (writing, nowhere):
            continue
        with contextlib.suppress(OSError):  # that of the listing itself
            kind = os.fstat(number).st_mode
            if number > 2 and (stat.S_ISCHR(kind) or stat.S_ISDIR(kind)):
                continue
            reads = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if not (stat.S_ISREG(kind) and reads):
                os.dup2(nowhere, number)
                continue
            try:
                anew = os.open(f"/proc/self/fd/{number}", os.O_RDONLY)
                os.lseek(anew, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
            except OSError:
                anew = os.dup(nowhere)
            os.dup2(anew, number)
            os.close(anew)


_write = os.write


def _read(reading: int, until: float) -> bytes:
    """All that is written until then."""
    told = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([reading], [], [], left)[0]:
            break
        part = os.read(reading, 1 << 16)
        if not part:
            break
        told += part
    return told
