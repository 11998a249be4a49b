"""The per-step log, one JSON object a line, written as the run goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TextIO

from nanodoc.errors import UsageError
from nanodoc.strict_json import strict

_HEADER = "nanodoc_history"


class History:
    """Appends one line a step to `history.jsonl`; a file of that name which nanodoc did not write is never touched."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path = _free_path(folder)
            self._file: TextIO | None = self.path.open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write to {folder}: {error.strerror or error}; choose another with --snapshot-dir") from error
        self._write({_HEADER: 1})

    def step(self, **values: Any) -> None:
        """Writes one step; NaN and inf become the strings "nan", "inf" and "-inf" (strict JSON)."""
        self._write({key: strict(value) for key, value in values.items()})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        except OSError:  # a full disk must not end the user's training
            self.close()


def _free_path(folder: Path) -> Path:
    """`history.jsonl`, or with a number behind it where a file of that name is not an earlier history of ours."""
    for number in range(1, 10_000):
        path = folder / ("history.jsonl" if number == 1 else f"history-{number}.jsonl")
        if not path.exists():
            return path
        try:
            with path.open(encoding="utf-8") as file:
                if _HEADER in json.loads(file.readline(200)):
                    return path
        except (ValueError, OSError, TypeError):
            continue
    raise UsageError(f"{folder} is full of history files; choose another with --snapshot-dir")
