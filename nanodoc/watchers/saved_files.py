"""Which files a rank of several saves with `torch.save`, and where."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

import torch

from nanodoc.facts.ranks import SavedFile
from nanodoc.replay.local_collectives import several_ranks
from nanodoc.trace.spans import Place, calling_places, resolved
from nanodoc.watchers.watch import Watch

_MOST = 32  # files that are kept of one rank


class SavedFilesWatch(Watch):
    """Told by `torch.save` itself, from the first step to the end of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._saved: dict[str, Place | None] = {}

    @contextlib.contextmanager
    def around_run(self) -> Iterator[None]:
        if not several_ranks():
            yield
            return
        original = torch.save

        @functools.wraps(original)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            self._note(f)
            return original(obj, f, *args, **kwargs)

        torch.save = save
        try:
            yield
        finally:
            if torch.save is save:  # somebody else may have wrapped it since
                torch.save = original

    def _note(self, file: Any) -> None:
        with contextlib.suppress(Exception):  # a file object may be anything
            path = file if isinstance(file, (str, os.PathLike)) else file.name
            path = os.path.realpath(os.fspath(path))
            if isinstance(path, str) and path not in self._saved and len(self._saved) < _MOST:
                own, caller = calling_places(3)
                self._saved[path] = caller or own

    def facts(self) -> dict[str, Any]:
        return {
            "saved": tuple(
                SavedFile(path=path, location=resolved(place))
                for path, place in self._saved.items()
            )
        }
