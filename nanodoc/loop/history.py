"""The per-step log, one JSON object a line, written as the run goes."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

from nanodoc.artifacts import make_folder
from nanodoc.errors import UsageError
from nanodoc.strict_json import one_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_HEADER = "nanodoc_history"
_SECONDS = 1.0


class History:
    """Appends one line a step to `history.jsonl`; a file of that name which nanodoc did not write
    is never touched."""

    def __init__(self, folder: Path, training: int = 1) -> None:
        """`training` counts those of a script that makes several; each has a file of its own."""
        try:
            make_folder(folder)
            stem = "history" if training == 1 else f"history-training{training}"
            self.path, self._file = _free_file(folder, stem)
        except OSError as error:
            raise UsageError(
                f"cannot write to {folder}: {error.strerror or error}; choose a different folder "
                "with --snapshot-dir"
            ) from error
        self._waiting: list[dict[str, Any] | str] = [{_HEADER: 1}]
        self._written = 0.0
        self._write()

    def step(self, **values: Any) -> None:
        """Notes one step; NaN and inf become the strings "nan", "inf" and "-inf" (strict JSON)."""
        self._waiting.append(values)
        self._write_now_and_then()

    def brief_steps(self, steps: Iterable[tuple[int, float, float | None, float]]) -> None:
        """Notes steps of which only (number, loss, learning rate, seconds) is known, as `step`
        does."""
        self._waiting += [
            f'{{"step": {step}, "loss": {_number(loss)}, "lr": {_number(lr)}, '
            f'"seconds": {_number(seconds)}}}'
            for step, loss, lr, seconds in steps
        ]
        self._write_now_and_then()

    def close(self) -> None:
        if self._file is not None:
            self._write()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write_now_and_then(self) -> None:
        """A fast loop's steps are written some at a time: a system call each would slow it."""
        if monotonic() - self._written > _SECONDS:
            self._write()

    def _write(self) -> None:
        """Writes what waits."""
        self._written = monotonic()
        lines, self._waiting = self._waiting, []
        if self._file is None:
            return
        try:
            self._file.writelines(
                f"{line if isinstance(line, str) else one_line(line)}\n" for line in lines
            )
            self._file.flush()
        except OSError:  # a full disk must not end the user's training
            self._file = None


def _number(value: float | None) -> str:
    """As strict JSON."""
    if value is None:
        return "null"
    return repr(value) if math.isfinite(value) else one_line(value)


def _free_file(folder: Path, stem: str) -> tuple[Path, TextIO | None]:
    """`stem.jsonl`, made anew; with a number behind it where something of that name is there that
    is not an earlier history of ours, or is one that another run writes. Raises `OSError`."""
    for number in range(1, 10_000):
        path = folder / (f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            found = _ours(path)
            if found is None:
                continue
            descriptor = found
        if not _locked(descriptor):
            os.close(descriptor)
            continue
        os.ftruncate(descriptor, 0)
        return path, os.fdopen(descriptor, "w", encoding="utf-8")
    raise OSError(f"{folder} already holds 10,000 histories")


def _ours(path: Path) -> int | None:
    """An open history of an earlier run. None for a link, a pipe, and a file of somebody else's."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            line = os.pread(descriptor, 200, 0).split(b"\n")[0]
            if _HEADER in json.loads(line):
                return descriptor
    except (ValueError, OSError, TypeError):
        pass
    os.close(descriptor)
    return None


def _locked(descriptor: int) -> bool:
    """Nobody else writes it. The lock goes with the descriptor."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
