"""The per-step log, one JSON object a line, written as the run goes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

from nanodoc.errors import UsageError
from nanodoc.strict_json import strict

_HEADER = "nanodoc_history"
_SECONDS = 0.2


class History:
    """Appends one line a step to `history.jsonl`; a file of that name which nanodoc did not write
    is never touched."""

    def __init__(self, folder: Path, training: int = 1) -> None:
        """`training` counts those of a script that makes several; each has a file of its own."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stem = "history" if training == 1 else f"history-training{training}"
            self.path = _free_path(folder, stem)
            self._file: TextIO | None = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write to {folder}: {error.strerror or error}; choose another with "
                "--snapshot-dir"
            ) from error
        self._waiting: list[dict[str, Any]] = [{_HEADER: 1}]
        self._written = 0.0
        self._write()

    def step(self, **values: Any) -> None:
        """Notes one step; NaN and inf become the strings "nan", "inf" and "-inf" (strict JSON)."""
        self._waiting.append(values)
        if time.monotonic() - self._written > _SECONDS:
            self._write()

    def close(self) -> None:
        if self._file is not None:
            self._write()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self) -> None:
        """Writes what waits. A fast loop's steps are written some at a time: a system call each
        would slow it."""
        self._written = time.monotonic()
        lines, self._waiting = self._waiting, []
        if self._file is None:
            return
        try:
            self._file.writelines(
                json.dumps(strict(line), allow_nan=False) + "\n" for line in lines
            )
            self._file.flush()
        except OSError:  # a full disk must not end the user's training
            self._file = None


def _free_path(folder: Path, stem: str) -> Path:
    """`stem.jsonl`, or with a number behind it where a file of that name is not an earlier
    history of ours."""
    for number in range(1, 10_000):
        path = folder / (f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl")
        if not path.exists():
            return path
        try:
            with path.open(encoding="utf-8") as file:
                if _HEADER in json.loads(file.readline(200)):
                    return path
        except (ValueError, OSError, TypeError):
            continue
    raise UsageError(f"{folder} is full of history files; choose another with --snapshot-dir")
