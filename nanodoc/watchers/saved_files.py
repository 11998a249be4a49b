"""Which files a rank of several saves with `torch.save` and reads with `torch.load`, where, and
between which collectives."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from nanodoc.facts.ranks import RankFile
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.watchers.watch import Watch

_MOST = 64  # of a rank
Known = dict[tuple[str, int | None, int | None], Place | None]
"""Where files were saved or read, by path and by the collectives that had been entered before and
after."""


class SavedFilesWatch(Watch):
    """Told by `torch.save` and `torch.load` themselves, from the first step to the end of the
    run."""

    def __init__(self) -> None:
        super().__init__()
        self._saved: Known = {}
        self._loaded: Known = {}

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        save, load = torch.save, torch.load

        @functools.wraps(save)
        def saving(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            own, caller = calling_places(2)
            with _noted(self._saved, f, caller or own):
                return save(obj, f, *args, **kwargs)

        @functools.wraps(load)
        def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
            own, caller = calling_places(2)
            with _noted(self._loaded, f, caller or own):
                return load(f, *args, **kwargs)

        torch.save, torch.load = saving, loading
        try:
            yield
        finally:
            # somebody else may have wrapped them since
            if torch.save is saving:
                torch.save = save
            if torch.load is loading:
                torch.load = load

    def facts(self) -> dict[str, Any]:
        return {"saved": _files(self._saved), "loaded": _files(self._loaded)}


@contextlib.contextmanager
def _noted(known: Known, file: Any, place: Place | None) -> Iterator[None]:
    path = _path_of(file)
    began = _collectives()
    yield
    if path and len(known) < _MOST:
        known.setdefault((path, began, _collectives()), place)


def _files(known: Known) -> tuple[RankFile, ...]:
    return tuple(
        RankFile(path=path, location=resolved(place), began=began, ended=ended)
        for (path, began, ended), place in known.items()
    )


def _path_of(file: Any) -> str:
    """Absolute, without links; "" for what is in no file."""
    with contextlib.suppress(Exception):  # a file object may be anything
        path = file if isinstance(file, (str, os.PathLike)) else file.name
        real = os.path.realpath(os.fspath(path))
        return real if isinstance(real, str) else ""
    return ""


def _collectives() -> int | None:
    """How many this rank has entered; None where that can't be told, or where there are groups of
    some ranks, which count by themselves."""
    world = dist.distributed_c10d
    with contextlib.suppress(Exception):  # a backend that does not count, another torch
        if len(world._world.pg_map) == 1:
            group: Any = world._get_default_group()
            return int(group._get_sequence_number_for_group())
    return None
