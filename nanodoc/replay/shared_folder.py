"""The folder of a sharded step: an index, a file with each rank's own batch and state, and what is
sharded. It is there as a whole, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from nanodoc.errors import UsageError
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.lockstep import all_told
from nanodoc.replay.snapshot import free_name, save

_INDEX = "index.json"
_LARGEST_INDEX = 1 << 16  # bytes
_MOST_RANKS = 1 << 20
_WELL, _SICK, _FAILED = "well", "sick", "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What the folder's index says."""

    ranks: int
    first: int
    """The rank whose part is replayed where one is replayed by itself: the first that was sick."""


class SharedFolder:
    """While it is open, all ranks write into it; it is taken away where one of them fails. All have
    to open it, with a parent folder that all of them see."""

    def __init__(self, parent: Path, step: int) -> None:
        self._parent, self._step = parent, step
        self._leads = dist.get_rank() == 0

    def __enter__(self) -> SharedFolder:
        name = ""
        if self._leads:
            self._parent.mkdir(parents=True, exist_ok=True)
            path = free_name(self._parent, self._step, "")
            path.mkdir(mode=0o700)
            name = path.name
        self.path = self._parent / all_told(self._step, "folder", name)[0]
        return self

    def write(self, recipe: Recipe, content: Mapping[str, Any], *, sick: bool) -> None:
        """This rank's part. Raises `OSError`, and `RuntimeError` where another rank failed."""
        from nanodoc.replay.shards import write_shards

        failed: Exception | None = None
        try:
            save(content, part_of(self.path, dist.get_rank()))
        except Exception as error:
            failed = error
        states = all_told(
            self._step, "parts", _FAILED if failed is not None else _SICK if sick else _WELL
        )
        if failed is not None:
            raise failed
        if _FAILED in states:
            raise RuntimeError(f"rank {states.index(_FAILED)} could not write its part")
        write_shards(recipe, self.path)
        if self._leads:
            index = {
                "nanodoc_sharded": 1,
                "step": self._step,
                "ranks": len(states),
                "first": states.index(_SICK) if _SICK in states else 0,
            }
            with (self.path / _INDEX).open("x", encoding="utf-8") as file:
                json.dump(index, file)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._leads:
            shutil.rmtree(self.path, ignore_errors=True)


def part_of(folder: Path, rank: int) -> Path:
    """The file of one rank."""
    return folder / f"rank{rank}.pt"


def read_index(folder: Path) -> Index:
    """Raises `UsageError`."""
    path = folder / _INDEX
    wrong = UsageError(f"{folder} is no snapshot of several ranks that nanodoc wrote")
    if not path.is_file() or path.stat().st_size > _LARGEST_INDEX:
        raise wrong
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise wrong from None
    if not isinstance(told, dict) or told.get("nanodoc_sharded") != 1:
        raise wrong
    ranks, first = told.get("ranks"), told.get("first")
    if type(ranks) is not int or type(first) is not int or not 0 <= first < ranks <= _MOST_RANKS:
        raise wrong
    return Index(ranks=ranks, first=first)
