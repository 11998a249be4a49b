"""The folder of a sharded step: an index, a file with each rank's own batch and state, and what is
sharded. It is there as a whole, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from nanodoc.artifacts import make_folder
from nanodoc.recipe.recipe import Recipe
from nanodoc.replay.fsdp import is_flattened
from nanodoc.replay.lockstep import all_told, local_bytes
from nanodoc.replay.shared_index import INDEX, part_of
from nanodoc.replay.snapshot import free_name, save

_LARGEST = 16 * 2**30  # bytes that are written without being asked for
_WELL, _SICK, _FAILED = "well", "sick", "failed"


class SharedFolder:
    """While it is open, all ranks write into it; it is taken away where one of them fails. All have
    to open it, with a parent folder that all of them see."""

    def __init__(self, parent: Path, step: int, recipe: Recipe) -> None:
        self._parent, self._step, self._recipe = parent, step, recipe
        self._leads = dist.get_rank() == 0
        self._size = 0

    def __enter__(self) -> SharedFolder:
        """Raises `OSError` where it would be too large."""
        name = ""
        sizes = all_told(self._step, "sizes", str(local_bytes(self._recipe)))
        self._size = sum(map(int, sizes))
        if self._size > _LARGEST:
            raise OSError(f"it would be {self._size / 2**30:.0f} GiB large")
        if self._leads:
            make_folder(self._parent)
            path = free_name(self._parent, self._step, "")
            path.mkdir(mode=0o700)
            name = path.name
        self.path = self._parent / all_told(self._step, "folder", name)[0]
        return self

    def write(self, content: Mapping[str, Any], *, sick: bool) -> None:
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
        write_shards(self._recipe, self.path)
        if self._leads:
            index = {
                "nanodoc_sharded": 1,
                "step": self._step,
                "bytes": self._size,
                "ranks": len(states),
                "apart": not any(is_flattened(module) for module in self._recipe.model.modules()),
                "first": states.index(_SICK) if _SICK in states else 0,
            }
            with (self.path / INDEX).open("x", encoding="utf-8") as file:
                json.dump(index, file)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and self._leads:
            shutil.rmtree(self.path, ignore_errors=True)
