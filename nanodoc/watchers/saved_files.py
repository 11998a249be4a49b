"""Which files a rank of several saves with `torch.save` and reads with `torch.load`, where, and
between which collectives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from nanodoc.facts.ranks import RankFile
from nanodoc.instrument import taps
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.watchers.watch import Watch

_MOST = 64  # of a rank
_MESSAGES = ("send", "recv", "batch_isend_irecv", "monitored_barrier")
"""Not isend and irecv: torch compares those that a P2POp is given with its own."""
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
        self._group: Any = None
        self._point_to_point = False

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        messages = [(taps.at(dist, name), self._hearing) for name in _MESSAGES]
        with taps.listening((taps.SAVE, self._saving), (taps.LOAD, self._loading), *messages):
            yield

    def _saving(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            own, caller = calling_places(2)
            with self._noted(self._saved, f, caller or own):
                return original(obj, f, *args, **kwargs)

        return save

    def _loading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            own, caller = calling_places(2)
            with self._noted(self._loaded, f, caller or own):
                return original(f, *args, **kwargs)

        return load

    def _hearing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Messages from rank to rank order what ranks do, and are not counted, or not on both."""

        def message(*args: Any, **kwargs: Any) -> Any:
            self._point_to_point = True
            return original(*args, **kwargs)

        return message

    @contextlib.contextmanager
    def _noted(self, known: Known, file: Any, place: Place | None) -> Iterator[None]:
        path = _path_of(file)
        began = self._collectives()
        yield
        if path and len(known) < _MOST:
            known.setdefault((path, began, self._collectives()), place)

    def _collectives(self) -> int | None:
        """How many this rank has entered; None where that can't be told: where there are groups of
        some ranks, which count by themselves, several backends, or another group than at first."""
        world = dist.distributed_c10d
        with contextlib.suppress(Exception):  # a backend that does not count, another torch
            group: Any = world._get_default_group()
            self._group = self._group or group
            backends = {id(group._get_backend(device)) for device in group._device_types}
            if len(world._world.pg_map) == len(backends) == 1 and group is self._group:
                return int(group._get_sequence_number_for_group())
        return None

    def facts(self) -> dict[str, Any]:
        counted = not self._point_to_point
        return {
            "saved": _files(self._saved, counted),
            "loaded": _files(self._loaded, counted),
        }


def _files(known: Known, counted: bool) -> tuple[RankFile, ...]:
    return tuple(
        RankFile(
            path=path,
            location=resolved(place),
            began=began if counted else None,
            ended=ended if counted else None,
        )
        for (path, began, ended), place in known.items()
    )


def _path_of(file: Any) -> str:
    """Absolute, without links; "" for what is in no file."""
    with contextlib.suppress(Exception):  # a file object may be anything
        path = file if isinstance(file, (str, os.PathLike)) else file.name
        real = os.path.realpath(os.fspath(path))
        return real if isinstance(real, str) else ""
    return ""
