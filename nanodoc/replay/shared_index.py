"""What the index of a sharded step's folder says. Nothing here imports torch."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from nanodoc.errors import UsageError

INDEX = "index.json"
_PART = re.compile(r"rank\d+\.pt", re.ASCII)
_LARGEST_INDEX = 1 << 16  # bytes
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What the folder's index says."""

    ranks: int
    apart: bool
    """One process can replay the part of one rank."""
    size: int
    """Bytes of all weights and optimizer states."""
    first: int
    """The rank whose part is replayed where one is replayed by itself: the first that was sick."""


def part_of(folder: Path, rank: int) -> Path:
    """The file of one rank."""
    return folder / f"rank{rank}.pt"


def is_part(path: Path) -> bool:
    """Whether a file is named as `part_of` names them."""
    return _PART.fullmatch(path.name) is not None


def read_index(folder: Path) -> Index:
    """Raises `UsageError`."""
    path = folder / INDEX
    wrong = UsageError(f"{folder} is not a multi-rank snapshot written by nanodoc")
    if not path.is_file() or path.stat().st_size > _LARGEST_INDEX:
        raise wrong
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise wrong from None
    if not isinstance(told, dict) or told.get("nanodoc_sharded") != 1:
        raise wrong
    ranks, first, size = (told.get(name) for name in ("ranks", "first", "bytes"))
    if type(ranks) is not int or type(first) is not int or not 0 <= first < ranks <= _MOST_RANKS:
        raise wrong
    if type(size) is not int or size < 0:
        raise wrong
    return Index(ranks=ranks, apart=told.get("apart") is not False, size=size, first=first)
